"""One rank of bench/hook_gpu.py: RANK, WORLD_SIZE, … in the environment; the job as JSON in the argument, the result to job["out"].<rank>."""
import faulthandler
import glob
import json
import os
import resource
import signal
import sys
import time

import torch
import torch.distributed as dist

import freeride
import nccl_waits
import pipeline
from freeride import _cuda, _hook, _memory
from train_pipelining import expected_waits


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
    from freeride import pages
    fd = os.open(page_path(), os.O_RDONLY)
    try:
        page = pages.map_page(pages.BubblePage, fd).copy()
    finally:
        os.close(fd)
    known = [[round(one.low_ns / 1e6, 2), round(one.high_ns / 1e6, 2)] for one in page.learned[:page.waits]]
    recent = [page.history[(page.bubbles - 1 - i) % 1024] for i in range(min(page.bubbles, 2 * page.waits))]
    marked = [[r.state_word & 0xFFFF, round((r.end_ns - r.begin_ns) / 1e6, 2)] for r in reversed(recent)]
    return {"waits": page.waits, "iteration": page.iteration, "bubbles": page.bubbles, "relearned": page.relearned, "learned_ms": known,
            "recent_ms": marked, "usable_gib": round(page.usable_bytes / 2**30, 1), "hook_state": page.hook_state}


WAYS = {"two_phase": 3, "stream_wait": 1e6}  # from which length on, in ms, the host waits first


def timed(job, device, result):
    """Blocks of iterations with and without the hook, by turns; where there are several ways of waiting, with these by turns."""
    training = pipeline.Training(job["schedule"], pipeline.Size(**job["size"]), device)
    ways = job.get("ways", ["two_phase"])
    events, way_of, cpu = [], [], {way: [] for way in ways}
    for block in range(job["blocks"] * len(ways) + 1):  # the first: warm-up and learning
        way = "warm up" if block == 0 else ways[block // 2 % len(ways)] if block % 2 == 0 else None
        _cuda.pause(way is None)
        if way in WAYS:
            _cuda.two_phase(WAYS[way])
        before, count_before, begin = helper_cpu_s(), _cuda.counters()["cpu_ns"], time.monotonic()
        for _ in range(job["warm_up"] if block == 0 else job["iterations"]):
            event = torch.cuda.Event(enable_timing=True)
            training.step()
            event.record()
            if job.get("synchronise"):
                torch.cuda.synchronize()
            events.append(event)
            way_of.append(way)
            if len(events) % 4 == 0:  # the host not more than a few iterations ahead
                events[-3].synchronize()
        torch.cuda.synchronize()
        if way in cpu:
            cpu[way].append(100 * (helper_cpu_s() - before + (_cuda.counters()["cpu_ns"] - count_before) / 1e9) / (time.monotonic() - begin))
    result["iteration_ms"] = [None] + [round(a.elapsed_time(b), 4) for a, b in zip(events, events[1:])]
    result["ways"] = way_of
    result["hook_cpu_pct_of"] = cpu
    result["memory_gib"] = torch.cuda.max_memory_reserved() / 2**30
    if job.get("until"):
        _cuda.pause(False)
        _cuda.two_phase(WAYS["two_phase"])
        leave(job, result)
        train_on(training, job["until"], len(events), job["out"], job.get("synchronise"))


def leave(job, result):
    result["counters"], result["page"] = _cuda.counters(), waits_of_page() if page_path() else None
    save(job, result)


def save(job, result):
    with open(f"{job['out']}.{dist.get_rank()}.part", "w") as file:
        json.dump(result, file)
    os.replace(f"{job['out']}.{dist.get_rank()}.part", f"{job['out']}.{dist.get_rank()}")


def grow():
    """Asks for more memory than there is beside side tasks: without what comes between torch and its cudaMalloc, and with it."""
    free, total = torch.cuda.mem_get_info()
    size = free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() + (4 << 30)  # torch lets go of what it keeps before it fails
    result = {"free_mib": free >> 20, "total_mib": total >> 20, "asked_mib": size >> 20}
    for way in ("without", "with"):
        if way == "without":
            _memory.stop()
        else:
            _memory.serve(_hook.library(), _hook._handle)
        begin = time.monotonic()
        try:
            block = torch.empty(size, dtype=torch.uint8, device="cuda")
            block[-1] = 1
            del block
            result[way] = "has it"
        except torch.OutOfMemoryError:
            result[way] = "out of memory"
        result[way + "_ms"] = round(1e3 * (time.monotonic() - begin), 1)
    torch.cuda.empty_cache()
    result["refused_and_saved"] = _memory.counters()
    return result


def train_on(training, until, iteration, out, synchronise=False):
    """As long as the file `until` does not say after which iteration to stop; whoever writes it chooses one that is ahead of both ranks.
    synchronise: the host waits for the GPU after each iteration, as a training does that logs its loss."""
    print(dist.get_rank(), "READY", page_path(), iteration, flush=True)
    last, recent, grown = None, [], None
    while last is None or iteration < last:
        training.step()
        iteration += 1
        event = torch.cuda.Event()
        event.record()
        if synchronise:
            torch.cuda.synchronize()
        recent = [*recent[-2:], event]
        recent[0].synchronize()
        if last is None and not grown and os.path.exists(until + ".grow"):
            grown = grow()
            with open(f"{out}.{dist.get_rank()}.grown.part", "w") as file:
                json.dump(grown, file)
            os.replace(f"{out}.{dist.get_rank()}.grown.part", f"{out}.{dist.get_rank()}.grown")
        if last is None and iteration % 4 == 0 and os.path.exists(until):
            with open(until) as file:
                last = int(file.read())
            if iteration > last:
                raise RuntimeError(f"told to stop after iteration {last} in iteration {iteration}: the other rank has")
    torch.cuda.synchronize()


def groups_of(job):
    """This rank's pipeline of job["pipeline"] ranks, and the ranks of its stage in all pipelines; None, None where there is one pipeline."""
    rank, world, stages = dist.get_rank(), dist.get_world_size(), job.get("pipeline") or dist.get_world_size()
    if stages == world:
        return None, None
    pipe = beside = None
    for first in range(0, world, stages):
        group = dist.new_group(list(range(first, first + stages)))
        pipe = group if first <= rank < first + stages else pipe
    for place in range(stages):
        group = dist.new_group(list(range(place, world, stages)))
        beside = group if rank % stages == place else beside
    return pipe, beside


SURE = 4  # iterations until the hook knows which receives are posted early


def compared(job, device, result):
    """The same iterations without and with the hook, for each schedule: bitwise the same losses, and waits that are the schedule's."""
    group, beside = groups_of(job)
    for schedule, stages in job["schedules"]:
        faulthandler.dump_traceback_later(job.get("watchdog_s", 40), exit=True)
        # DualPipeV wants as many micro-batches as it has stages.
        size = pipeline.Size(**dict(job["size"], stages=stages, micro_batches=max(4, stages) if schedule == "DualPipeV" else 4))
        losses, seen = {}, {}
        for hooked in (False, True):
            _cuda.pause(not hooked)
            training = pipeline.Training(schedule, size, device, group=group, beside=beside, norm=job.get("norm", False))
            before, begin = _cuda.counters(), time.monotonic()
            kept, seen[hooked] = [], []
            nccl_waits.take()
            for index in range(job["iterations"]):
                kept.append(training.step())
                nccl_waits.listen()
                seen[hooked].append(nccl_waits.take())
                if hooked and job.get("fail_at") == index and dist.get_rank() == 1:
                    _hook.fail(RuntimeError("a test of what happens then"))
            torch.cuda.synchronize()
            losses[hooked] = [float(loss) for losses_of_step in kept for loss in losses_of_step]
            took = time.monotonic() - begin
        after = _cuda.counters()
        waits, marks = [[one[0] for one in seen[hooked]] for hooked in (False, True)], [one[1] for one in seen[True]]
        result[schedule] = {"equal": losses[False] == losses[True], "losses": len(losses[True]), "last": (losses[True] or [None])[-1],
                            "receives": len(expected_waits(training.schedule, training.place, training.mine, stages)), "waits": len(waits[0][-1]),
                            "waits_equal": waits[0][1:] == waits[1][1:], "marks_equal": marks[SURE:] == waits[0][SURE:],
                            "s": round(took, 2), "counters": {name: after[name] - before[name] for name in after},
                            "page": waits_of_page() if page_path() else None}
        if not result[schedule]["marks_equal"]:
            wrong = [i for i in range(SURE, len(marks)) if marks[i] != waits[0][i]]
            result[schedule]["first_difference"] = {"iteration": wrong[0], "iterations": len(wrong), "marks": marks[wrong[0]], "waits": waits[0][wrong[0]]}
        print(dist.get_rank(), schedule, json.dumps(result[schedule]), flush=True)
        save(job, result)  # of a run that does not come to its end
        faulthandler.cancel_dump_traceback_later()
        del training


def killed(job, device, result):
    """Rank 1 dies in the middle."""
    training = pipeline.Training(job["schedule"], pipeline.Size(**job["size"]), device)
    for index in range(job["iterations"]):
        training.step()
        if index == job["kill_at"] and dist.get_rank() == dist.get_world_size() - 1:
            torch.cuda.synchronize()
            os.kill(os.getpid(), signal.SIGKILL)
        if index % 2 == 0:
            torch.cuda.synchronize()
            print(dist.get_rank(), "iteration", index, flush=True)


def main():
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
    if job["what"] == "compared":
        nccl_waits.start()  # behind the hook, which init_process_group arms
    import datetime
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=job.get("timeout_s", 60)))
    result = {"rank": dist.get_rank(), "torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version())),
              "cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name(device)}
    begin = resource.getrusage(resource.RUSAGE_SELF)
    {"timed": timed, "compared": compared, "killed": killed}[job["what"]](job, device, result)
    end = resource.getrusage(resource.RUSAGE_SELF)
    result["process_cpu_s"] = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
    result["counters"], result["state"] = _cuda.counters(), freeride.state()
    result["page"] = waits_of_page() if page_path() else None
    save(job, result)
    dist.barrier()
    freeride.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
