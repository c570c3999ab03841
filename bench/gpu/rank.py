"""One rank of a training on GPUs, which ranks.py starts: RANK, WORLD_SIZE, … in the environment; the job as JSON in the argument, the result to
job["out"].<rank>."""

import datetime
import faulthandler
import glob
import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist

import freeride
import pipeline
from freeride import measure, pages


def helper_cpu_s():
    """Processor time of the hook's helper thread."""
    for path in glob.glob("/proc/self/task/*/stat"):
        with open(path) as file:
            text = file.read()
        if "(freeride-hook)" in text:
            words = text.rpartition(")")[2].split()
            return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def page_path():
    for path in glob.glob("/proc/self/fd/*"):
        try:
            if "bubble page" in os.readlink(path):
                return f"/proc/{os.getpid()}/fd/{path.rpartition('/')[2]}"
        except OSError:
            pass
    return None


def waits_of_page():
    """What the page knows of this rank's waits, in ms: low and high quantile."""
    with open(page_path(), "rb") as file, pages.map_page(pages.BubblePage, file.fileno()) as mapped:
        page = mapped.copy()
    known = [[round(one.low_ns / 1e6, 2), round(one.high_ns / 1e6, 2)] for one in page.learned[: page.waits]]
    recent = [page.history[(page.bubbles - 1 - i) % pages.HISTORY] for i in range(min(page.bubbles, 2 * page.waits))]
    marked = [[pages.state_wait(r.state_word), round((r.end_ns - r.begin_ns) / 1e6, 2)] for r in reversed(recent)]
    return {
        "waits": page.waits,
        "iteration": page.iteration,
        "bubbles": page.bubbles,
        "relearned": page.relearned,
        "learned_ms": known,
        "recent_ms": marked,
        "usable_gib": round(page.usable_bytes / 2**30, 1),
        "hook_state": page.hook_state,
    }


def timed(job, device, result):
    """Blocks of iterations with and without the hook, by turns."""
    size, other = pipeline.Size(**job["size"]), job.get("other") or "data"
    group, beside = pipeline.groups_of(size.stages, other)
    training = pipeline.Training(job["schedule"], size, device, group=group, beside=beside, other=other)
    if job.get("host_ratio"):
        from slow_host import slow_host

        blocks = [block for chunk in training.chunks for block in chunk.blocks]
        shape = (size.batch, size.length, size.width)
        result["block_gpu_ms"] = slow_host(blocks, job["host_ratio"], shape, torch.bfloat16, device)
    events, way_of, host_ms, cpu = [], [], [], {"held": []}
    for block in range(job["blocks"] + 1):  # the first: warm-up and learning
        way = "warm up" if block == 0 else "held" if block % 2 == 0 else None
        measure.pause(way is None)
        before, count_before, begin = helper_cpu_s(), measure.counters()["cpu_ns"], time.monotonic()
        for _ in range(job["warm_up"] if block == 0 else job["iterations"]):
            event, posting = torch.cuda.Event(enable_timing=True), time.monotonic()
            training.step()
            host_ms.append(round(1e3 * (time.monotonic() - posting), 3))
            event.record()
            if job.get("synchronise"):
                torch.cuda.synchronize()
            events.append(event)
            way_of.append(way)
            if len(events) % 4 == 0:  # the host not more than a few iterations ahead
                events[-3].synchronize()
        torch.cuda.synchronize()
        if way in cpu:
            cpu[way].append(
                100
                * (helper_cpu_s() - before + (measure.counters()["cpu_ns"] - count_before) / 1e9)
                / (time.monotonic() - begin)
            )
    result["iteration_ms"] = [None] + [round(a.elapsed_time(b), 4) for a, b in zip(events, events[1:])]
    result["ways"] = way_of
    result["host_ms"] = host_ms  # how long the host posts an iteration
    result["hook_cpu_pct_of"] = cpu
    result["memory_gib"] = torch.cuda.max_memory_reserved() / 2**30
    if job.get("until"):
        measure.pause(False)
        leave(job, result)
        train_on(training, job["until"], len(events), job.get("synchronise"))


def leave(job, result):
    result["counters"], result["page"] = measure.counters(), waits_of_page() if page_path() else None
    save(job, result)


def save(job, result):
    write(f"{job['out']}.{dist.get_rank()}", result)


def write(path, result):
    with open(path + ".part", "w") as file:
        json.dump(result, file)
    os.replace(path + ".part", path)


def train_on(training, until, iteration, synchronise=False):
    """As long as the file `until` does not say after which iteration to stop; whoever writes it chooses one that is
    ahead of both ranks. synchronise: the host waits for the GPU after each iteration, as a training does that logs its
    loss."""
    print(dist.get_rank(), "READY", page_path(), iteration, flush=True)
    last, recent = None, []
    while last is None or iteration < last:
        training.step()
        iteration += 1
        event = torch.cuda.Event()
        event.record()
        if synchronise:
            torch.cuda.synchronize()
        recent = [*recent[-2:], event]
        recent[0].synchronize()
        if last is None and iteration % 4 == 0 and os.path.exists(until):
            with open(until) as file:
                last = int(file.read())
            if iteration > last:
                raise RuntimeError(f"told to stop after iteration {last} in iteration {iteration}: the other rank has")
    torch.cuda.synchronize()


def main(whats, before_group=lambda job: None):
    """`whats`: {job["what"]: function(job, device, result)}; `before_group`: called behind the hook's attaching."""
    job = json.loads(sys.argv[1])
    while job.get("gate") and not os.path.exists(job["gate"]):  # started ahead, so that imports cost no time
        time.sleep(0.02)
    faulthandler.enable()
    faulthandler.dump_traceback_later(job.get("watchdog_s", 100), exit=True)
    if job.get("deterministic"):
        torch.use_deterministic_algorithms(True)
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    freeride.attach()
    before_group(job)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=job.get("timeout_s", 60)))
    result = {
        "rank": dist.get_rank(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(device),
    }
    begin = resource.getrusage(resource.RUSAGE_SELF)
    whats[job["what"]](job, device, result)
    end = resource.getrusage(resource.RUSAGE_SELF)
    result["process_cpu_s"] = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
    result["counters"], result["state"] = measure.counters(), freeride.state()
    result["page"] = waits_of_page() if page_path() else None
    save(job, result)
    dist.barrier()
    freeride.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main({"timed": timed})
