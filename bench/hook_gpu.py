#!/usr/bin/env python3
"""What the hook costs training on all GPUs of a host, one stage on each, and that it leaves it as it was: torch.distributed.pipelining over NCCL.

    hook_gpu.py --python DIR --out FILE checks|times|all      # DIR: the package freeride, with its library
    hook_gpu.py --summary FILE                                # recomputes the summary from the samples

checks: the losses of each schedule with the hook are bitwise those without; a rank that dies, a hook that fails, a rank without one.
times: hooked and unhooked blocks by turns within one run, with the stream's wait alone and with the wait in two phases.
"""
import argparse
import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))
from rig.statistics import interval

BIG = {"layers": 8, "width": 3072, "heads": 24, "length": 1024, "batch": 4, "micro_batches": 4, "vocabulary": 32000}  # layers a stage
SMALL = {"layers": 4, "width": 512, "heads": 8, "length": 256, "batch": 2, "micro_batches": 4, "vocabulary": 1000}
# With how many stages on each GPU.
SCHEDULES = [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("LoopedBFS", 2), ("InterleavedZeroBubble", 2), ("ZBVZeroBubble", 2), ("DualPipeV", 2)]


def sized(size, stages):
    return dict(size, layers=size["layers"] * stages, stages=stages)


def gpus():
    return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())


class Ranks:
    """The ranks of one run, one on each GPU. With a gate they import what they need and wait for go()."""

    def __init__(self, options, job, per_rank=None, gate=False, program=("-m", "freeride.run", str(HERE / "gpu" / "rank.py")), **environment):
        self.count = options.ranks
        self.folder = tempfile.mkdtemp(prefix="fr-")
        self.job = dict(job, out=self.folder + "/result", gate=gate and self.folder + "/gate")
        port = 20000 + os.getpid() % 10000 + Ranks.made
        Ranks.made += 1
        self.processes = []
        for rank in range(self.count):
            own = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(self.count), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       PYTHONPATH=f"{options.python}:{HERE / 'gpu'}:{HERE.parent / 'hooks/tests/frameworks'}", PYTHONUNBUFFERED="1", CUBLAS_WORKSPACE_CONFIG=":4096:8",
                       NCCL_NVLS_ENABLE="0", FREERIDE_RUN_DIR=options.run_dir or self.folder, FREERIDE_JOB="bench", **environment)
            own.update((per_rank or {}).get(rank, {}))
            words = ["timeout", "-k", "2", str((2 if gate else 1) * job.get("watchdog_s", 100) + 25), sys.executable, *program, json.dumps(self.job)]
            self.processes.append(subprocess.Popen(words, env=own, stdout=open(f"{self.folder}/{rank}.out", "w"),
                                                   stderr=open(f"{self.folder}/{rank}.err", "w")))
    made = 0

    def go(self):
        open(self.folder + "/gate", "w").close()

    def end(self):
        """By a signal that `timeout` hands on: killed, it would leave its rank at work."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait()

    def text(self, rank, end="err", most=1500):
        with open(f"{self.folder}/{rank}.{end}") as file:
            return file.read()[-most:]

    def wait(self):
        """Results of the ranks (None for one that left none), and their exit codes."""
        codes = [process.wait() for process in self.processes]
        return self.results(), codes

    def results(self):
        results = []
        for rank in range(self.count):
            try:
                with open(f"{self.job['out']}.{rank}") as file:
                    results.append(json.load(file))
            except (OSError, ValueError):
                results.append(None)
        return results


def said(ranks):
    """What the hook said, for people."""
    return [[line for line in ranks.text(rank, most=100000).splitlines() if line.startswith("freeride:")] for rank in range(ranks.count)]


def increases(result):
    """Of neighbouring blocks, in percent: the hooked one's mean iteration over the unhooked one's, block by block in turn."""
    blocks = []
    for duration, hooked in zip(result["iteration_ms"], result["hooked"]):
        if hooked is None or duration is None:
            continue
        if not blocks or blocks[-1][0] != hooked:
            blocks.append((hooked, []))
            continue  # the first iteration of a block still has some of the one before
        blocks[-1][1].append(duration)
    means = []
    for hooked, values in blocks:
        if values and means and means[-1][0] == hooked:  # a block of one iteration lay between
            means[-1] = (hooked, statistics.fmean([means[-1][1], statistics.fmean(values)]))
        elif values:
            means.append((hooked, statistics.fmean(values)))
    values = []
    for (one_hooked, one), (_, other) in zip(means[::2], means[1::2]):
        on, off = (one, other) if one_hooked else (other, one)
        values.append(100 * (on / off - 1))
    return values


def summarise(record):
    summary = {}
    for name in ("stream_wait", "two_phase"):
        runs = record["times"].get(name)
        if not runs:
            continue
        values = increases(runs[0])
        for more in record.get("more_times", ()):  # of other runs of the same
            values += increases(more[name][0]) if name in more else []
        mean, half = interval(values)
        summary[f"hook_{name}_time_increase_pct"] = round(mean, 4)
        summary[f"hook_{name}_ci95_half_pct"] = round(half, 4)
        summary[f"hook_{name}_ci95_upper_pct"] = round(mean + half, 4)
        summary[f"hook_{name}_pairs"] = len(values)
        summary[f"hook_{name}_cpu_pct"] = round(max(statistics.fmean(run["hook_cpu_pct"]) for run in runs), 2)
        off = [d for d, hooked in zip(runs[0]["iteration_ms"], runs[0]["hooked"]) if d is not None and hooked is False]
        summary[f"{name}_unhooked_iteration_ms"] = round(statistics.fmean(off), 3)
    if summary:  # of the hook as it is, which waits in two phases where a lease is worth it
        summary["hook_time_increase_ci95_upper_pct"] = summary.get("hook_two_phase_ci95_upper_pct", summary.get("hook_stream_wait_ci95_upper_pct"))
        summary["hook_cpu_pct"] = max(value for name, value in summary.items() if name.endswith("_cpu_pct"))
    return summary


def by_way(results):
    """What a run's ranks left, for each way of waiting: which iterations were hooked (None: neither that nor unhooked)."""
    found = {}
    for way in results[0]["hook_cpu_pct_of"]:
        ways = results[0]["ways"]
        # An unhooked block's first iteration still has some of the one before: behind another way's, nothing else would leave it out.
        hooked = [True if one == way else False if one is None and before in (way, None) else None for before, one in zip([None, *ways], ways)]
        found[way] = [{**{key: value for key, value in result.items() if key not in ("ways", "hook_cpu_pct_of")}, "hooked": hooked,
                       "hook_cpu_pct": result["hook_cpu_pct_of"][way]} for result in results]
    return found


def times(options, record):
    job = {"what": "timed", "schedule": "1F1B", "size": sized(SMALL if options.small else BIG, options.ranks), "blocks": options.blocks,
           "ways": options.only or ["two_phase", "stream_wait"], "iterations": options.iterations, "warm_up": options.warm_up, "watchdog_s": options.watchdog}
    begin = time.monotonic()
    ranks = Ranks(options, job)
    results, codes = ranks.wait()
    print(f"== {codes}, {time.monotonic() - begin:.0f} s", said(ranks), flush=True)
    if None in results:
        for rank in range(ranks.count):
            print(ranks.text(rank, "out"), ranks.text(rank), flush=True)
        return
    record["times"] = by_way(results)
    for name, of_ranks in record["times"].items():
        print(name, "increase pct:", [round(value, 3) for value in increases(of_ranks[0])], flush=True)


def checks(options, record):
    """One after the other: unhooked receives spin on the GPU, and several trainings would wait for each other's spinning. But for the runs in
    which a rank is killed, most of whose time is waiting."""
    def several(schedules, pipeline=0):
        stages = pipeline or options.ranks
        return [(name, chunks * stages) for name, chunks in schedules]
    size = sized(SMALL, options.ranks)
    base = {"what": "compared", "size": size, "iterations": options.iterations, "deterministic": True, "watchdog_s": options.watchdog}
    one = dict(base, schedules=several([("1F1B", 1)]), iterations=14)
    low, halves = {"FREERIDE_HOOK_TWO_PHASE_MS": "0.3"}, max(2, options.ranks // 2)
    wanted = [
        ("schedules", dict(base, schedules=several(SCHEDULES)), {}, low),
        ("one connection", dict(base, schedules=several(SCHEDULES[1:3])), {}, dict(low, CUDA_DEVICE_MAX_CONNECTIONS="1")),
        ("two pipelines", dict(base, schedules=several([SCHEDULES[0], SCHEDULES[1], SCHEDULES[5]], halves), pipeline=halves), {}, low),
        ("norm", dict(base, schedules=several([SCHEDULES[1], SCHEDULES[3]]), norm=True), {}, low),
        ("one rank without", one, {1: {"FREERIDE_HOOK": "0"}}, low),
        ("one hook fails", dict(one, fail_at=8), {}, low),
    ]
    wanted = [of for of in wanted if not options.only or of[0] in options.only]
    ahead = [Ranks(options, job, per_rank, gate=True, **environment) for _, job, per_rank, environment in wanted[:1]]
    for index, (name, job, *_) in enumerate(wanted):
        ranks, begin = ahead.pop(), time.monotonic()
        ranks.go()
        for _, job_ahead, per_rank, environment in wanted[index + 1:index + 2]:
            ahead.append(Ranks(options, job_ahead, per_rank, gate=True, **environment))
        try:
            results, codes = ranks.wait()
        except SystemExit:  # told to end: what there is of it
            record["checks"][name] = {"good": False, "ended_early": True, "results": ranks.results()}
            for started in [ranks, *ahead]:
                started.end()
            raise
        compared = [one for result in results if result for one in result.values() if isinstance(one, dict) and "equal" in one]
        good = codes == [0] * ranks.count and len(compared) == ranks.count * len(job["schedules"]) and all(as_it_must_be(name, job, one) for one in compared)
        record["checks"][name] = {"good": good, "codes": codes, "s": round(time.monotonic() - begin, 1), "said": said(ranks), "results": results}
        save(options, record)
        print(f"[{since_start():.0f} s] {name}: {'good' if good else 'NOT as it must be'}, {len(compared)} compared, {codes}, "
              f"{time.monotonic() - begin:.0f} s", said(ranks), flush=True)
        for rank in range(ranks.count):
            if not good:
                print(ranks.text(rank, "out", 3000), flush=True)
            if results[rank] is None or codes[rank] != 0:
                print(ranks.text(rank, most=2500), flush=True)
    if not options.only or "rank killed" in options.only:
        killed(options, record, size)


def killed(options, record, size):
    """The last rank is killed, in a hooked training and at the same time in one without the hook."""
    dying = {"what": "killed", "schedule": "1F1B", "size": size, "iterations": 40, "kill_at": 20, "timeout_s": 10, "watchdog_s": 45}
    # What NCCL's watchdog would write down first takes longer than all else.
    quick = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
    names = {"rank killed, hooked": {}, "rank killed, unhooked": {"FREERIDE_HOOK": "0"}}
    runs = {name: Ranks(options, dying, **quick, **environment) for name, environment in names.items()}
    try:
        after = survivors(list(runs.values()))
    except SystemExit:
        for ranks in runs.values():
            ranks.end()
        raise
    for (name, ranks), seconds in zip(runs.items(), after):
        record["checks"][name] = {"survivors_ended_after_s": seconds, "codes": [process.returncode for process in ranks.processes], "said": said(ranks),
                                  "last_words": [ranks.text(rank, most=20000).strip().splitlines()[-4:] for rank in range(ranks.count - 1)]}
        print(f"[{since_start():.0f} s] {name}:", json.dumps({key: value for key, value in record["checks"][name].items() if key != "last_words"}), flush=True)
    save(options, record)


def as_it_must_be(name, job, one):
    """One schedule on one rank."""
    if name in ("one rank without", "one hook fails"):
        return one["equal"]
    whole = not job.get("norm") or one["page"]["waits"] == one["receives"] + 1
    return whole and one["equal"] and one["waits_equal"] and one["marks_equal"] and one["waits"] == one["receives"]


def survivors(runs):
    """Of runs whose last rank is killed: how long after it each of the others ended."""
    died, after = [None] * len(runs), [[None] * (ranks.count - 1) for ranks in runs]
    while any(None in of for of in after):
        for index, ranks in enumerate(runs):
            if died[index] is None and ranks.processes[-1].poll() is not None:
                died[index] = time.monotonic()
            for rank, process in enumerate(ranks.processes[:-1]):
                if died[index] is not None and after[index][rank] is None and process.poll() is not None:
                    after[index][rank] = round(time.monotonic() - died[index], 1)
        time.sleep(0.05)
    return after


START = time.monotonic()


def since_start():
    return time.monotonic() - START


def save(options, record):
    with open(options.out + ".part", "w") as file:
        json.dump({**record, **summarise(record)}, file)
    os.replace(options.out + ".part", options.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("checks", "times", "all"))
    parser.add_argument("--python", help="folder of the package freeride")
    parser.add_argument("--out")
    parser.add_argument("--summary", metavar="FILE")
    parser.add_argument("--run-dir", help="where workers' sockets are; default: a folder without any")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=12, help="of a block, or of each schedule that is checked")
    parser.add_argument("--ranks", type=int, default=0, help="default: one on each GPU")
    parser.add_argument("--warm-up", type=int, default=30)
    parser.add_argument("--small", action="store_true", help="a small model: to try out this script")
    parser.add_argument("--watchdog", type=int, default=140, help="seconds after which a run that hangs is ended")
    parser.add_argument("--only", action="append", help="one check or kind of wait, by its name")
    options = parser.parse_args()
    if options.summary:
        with open(options.summary) as file:
            print(json.dumps(summarise(json.load(file)), indent=1))
        return
    os.setpgrp()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "command": " ".join(sys.argv),
              "times": {}, "checks": {}}
    options.ranks = options.ranks or gpus()
    names = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout
    record["machine"] = names.strip().splitlines()
    try:
        if options.what in ("checks", "all"):
            checks(options, record)
        if options.what in ("times", "all"):
            times(options, record)
    finally:
        save(options, record)
        print(json.dumps({key: value for key, value in {**record, **summarise(record)}.items() if key not in ("times", "checks")}, indent=1))


if __name__ == "__main__":
    main()
