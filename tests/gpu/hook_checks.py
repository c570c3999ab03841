#!/usr/bin/env python3
"""Does the hook leave training over NCCL as it was? On all GPUs of a host, one stage on each, from the source tree.

    tests/gpu/hook_checks.py --python DIR --out FILE      # DIR: the package freeride, with its library

The losses of each schedule with the hook are bitwise those without, and its waits are the schedule's; a hook that
fails, a rank without one, a rank that dies; half of the ranks as if on another host, whose receives are held. Exit code 1 if something is not as it must be."""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
sys.path += [str(HERE.parent), str(SOURCE / "bench/gpu")]
from ranks import HOOKED, SMALL, Ranks, machine, sized
from rig.gpus import gpus

# With how many stages on each GPU.
SCHEDULES = [
    ("GPipe", 1),
    ("1F1B", 1),
    ("Interleaved1F1B", 2),
    ("LoopedBFS", 2),
    ("InterleavedZeroBubble", 2),
    ("ZBVZeroBubble", 2),
    ("DualPipeV", 2),
]


def start(options, job, per_rank=None, gate=False, **more):
    return Ranks(
        options.ranks,
        options.python,
        job,
        (*HOOKED, HERE / "hook_rank.py"),
        (SOURCE / "hooks/tests/frameworks",),
        options.run_dir,
        per_rank,
        gate,
        **more,
    )


def checks(options, record):
    """One after the other: unhooked receives spin on the GPU, and several trainings would wait for each other's
    spinning. But for the runs in which a rank is killed, most of whose time is waiting."""

    def several(schedules, pipeline=0):
        stages = pipeline or options.ranks
        return [(name, chunks * stages) for name, chunks in schedules]

    size = sized(SMALL, options.ranks)
    base = {
        "what": "compared",
        "size": size,
        "iterations": options.iterations,
        "deterministic": True,
        "watchdog_s": options.watchdog,
    }
    one = dict(base, schedules=several([("1F1B", 1)]), iterations=14)
    # The lengths of short waits are to be told, too.
    low = {"FREERIDE_HOOK_SHORTEST_MS": "0.3"}
    halves = max(2, options.ranks // 2)
    wanted = [
        ("schedules", dict(base, schedules=several(SCHEDULES)), {}, low),
        (
            "one connection",
            dict(base, schedules=several(SCHEDULES[1:3])),
            {},
            dict(low, CUDA_DEVICE_MAX_CONNECTIONS="1"),
        ),
        (
            "two pipelines",
            dict(base, schedules=several([SCHEDULES[0], SCHEDULES[1], SCHEDULES[5]], halves), pipeline=halves),
            {},
            low,
        ),
        (
            "tensor parallelism",
            dict(
                base,
                schedules=several([SCHEDULES[1], SCHEDULES[2], SCHEDULES[5]], halves),
                pipeline=halves,
                other="tensor",
            ),
            {},
            low,
        ),
        ("norm", dict(base, schedules=several([SCHEDULES[1], SCHEDULES[3]]), norm=True), {}, low),
        ("one rank without", one, {1: {"FREERIDE_HOOK": "0"}}, low),
        ("one hook fails", dict(one, fail_at=8), {}, low),
        # Ceilings are learned in the first 24 iterations.
        ("two hosts", dict(base, schedules=several(SCHEDULES), iterations=60), *two_hosts(options, low)),
    ]
    wanted = [of for of in wanted if not options.only or of[0] in options.only]
    ahead = [start(options, job, per_rank, gate=True, **more) for _, job, per_rank, more in wanted[:1]]
    for index, (name, job, *_) in enumerate(wanted):
        ranks, begin = ahead.pop(), time.monotonic()
        ranks.go()
        for _, job_ahead, per_rank, more in wanted[index + 1 : index + 2]:
            ahead.append(start(options, job_ahead, per_rank, gate=True, **more))
        try:
            results, codes = ranks.results_when_ended()
        except SystemExit:  # told to end: what there is of it
            record["checks"][name] = {"good": False, "ended_early": True, "results": ranks.results()}
            for started in [ranks, *ahead]:
                started.end_all()
            raise
        compared = [
            one for result in results if result for one in result.values() if isinstance(one, dict) and "equal" in one
        ]
        good = (
            codes == [0] * ranks.count
            and len(compared) == ranks.count * len(job["schedules"])
            and all(as_it_must_be(name, job, one) for one in compared)
        )
        record["checks"][name] = {
            "good": good,
            "codes": codes,
            "s": round(time.monotonic() - begin, 1),
            "said": ranks.said(),
            "results": results,
        }
        save(options, record)
        print(
            f"{name}: {'good' if good else 'NOT as it must be'}, {len(compared)} compared, {codes}, {time.monotonic() - begin:.0f} s",
            ranks.said(),
            flush=True,
        )
        for rank in range(ranks.count):
            if not good:
                print(ranks.text(rank, "out", 3000), flush=True)
            if results[rank] is None or codes[rank] != 0:
                print(ranks.text(rank, most=2500), flush=True)
    if not options.only or "rank killed" in options.only:
        killed(options, record, size)


def two_hosts(options, low):
    """The ranks' environments as if the first half of them were on a host, and the others on another one."""
    per_rank = {}
    for rank in range(options.ranks):
        host = rank * 2 // options.ranks
        shared = options.shared / f"host{host}"
        shared.mkdir(exist_ok=True)
        per_rank[rank] = {"NCCL_HOSTID": f"host{host}", "FREERIDE_SHM_DIR": str(shared)}
    sockets = {"NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
    return per_rank, dict(low, FREERIDE_HOLD_HOSTS="1", **sockets)


def killed(options, record, size):
    """The last rank is killed, in a hooked training and at the same time in one without the hook."""
    dying = {
        "what": "killed",
        "schedule": "1F1B",
        "size": size,
        "iterations": 40,
        "kill_at": 20,
        "timeout_s": 10,
        "watchdog_s": 45,
    }
    # What NCCL's watchdog would write down first takes longer than all else.
    quick = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
    names = {"rank killed, hooked": {}, "rank killed, unhooked": {"FREERIDE_HOOK": "0"}}
    runs = {name: start(options, dying, **quick, **more) for name, more in names.items()}
    try:
        after = survivors(list(runs.values()))
    except SystemExit:
        for ranks in runs.values():
            ranks.end_all()
        raise
    for (name, ranks), seconds in zip(runs.items(), after):
        record["checks"][name] = {
            "survivors_ended_after_s": seconds,
            "codes": [process.returncode for process in ranks.ranks],
            "said": ranks.said(),
            "last_words": [ranks.text(rank, most=20000).strip().splitlines()[-4:] for rank in range(ranks.count - 1)],
        }
        print(
            f"{name}:",
            json.dumps({key: value for key, value in record["checks"][name].items() if key != "last_words"}),
            flush=True,
        )
    save(options, record)


def as_it_must_be(name, job, one):
    """One schedule on one rank."""
    if name in ("one rank without", "one hook fails", "two hosts"):  # not all of their waits are marked
        return one["equal"]
    whole = not job.get("norm") or one["page"]["waits"] == one["receives"] + 1
    return whole and one["equal"] and one["waits_equal"] and one["marks_equal"] and one["waits"] == one["receives"]


def survivors(runs):
    """Of runs whose last rank is killed: how long after it each of the others ended."""
    died, after = [None] * len(runs), [[None] * (ranks.count - 1) for ranks in runs]
    while any(None in of for of in after):
        for index, ranks in enumerate(runs):
            if died[index] is None and ranks.ranks[-1].poll() is not None:
                died[index] = time.monotonic()
            for rank, process in enumerate(ranks.ranks[:-1]):
                if died[index] is not None and after[index][rank] is None and process.poll() is not None:
                    after[index][rank] = round(time.monotonic() - died[index], 1)
        time.sleep(0.05)
    return after


def save(options, record):
    with open(options.out + ".part", "w") as file:
        json.dump(record, file)
    os.replace(options.out + ".part", options.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="folder of the package freeride")
    parser.add_argument("--out", required=True)
    parser.add_argument("--run-dir", help="where workers' sockets are; default: a folder without any")
    parser.add_argument("--iterations", type=int, default=12, help="of each schedule")
    parser.add_argument("--ranks", type=int, default=0, help="default: one on each GPU")
    parser.add_argument("--watchdog", type=int, default=140, help="seconds after which a run that hangs is ended")
    parser.add_argument("--only", action="append", help="one check, by its name")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "machine": machine(),
        "checks": {},
    }
    options.ranks = options.ranks or len(gpus())
    options.shared = pathlib.Path(tempfile.mkdtemp(prefix="freeride-hosts-", dir="/dev/shm"))
    try:
        checks(options, record)
    finally:
        shutil.rmtree(options.shared, ignore_errors=True)
        save(options, record)
    return 0 if all(check.get("good", True) for check in record["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
