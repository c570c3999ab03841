#!/usr/bin/env python3
"""What the hook costs training on all GPUs of a host, one stage on each: torch.distributed.pipelining over NCCL.

    hook_gpu.py --python DIR --out FILE         # DIR: the package freeride, with its library
    hook_gpu.py --summary FILE                  # recomputes the summary from the samples

Hooked and unhooked blocks by turns within one run. That the hook leaves training as it was is checked by
tests/gpu/hook_checks.py."""

import argparse
import datetime
import json
import pathlib
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "tests"), str(HERE / "gpu")]
from blocks import by_way, increases, summarise
from ranks import BIG, SMALL, Ranks, machine, sized
from rig.gpus import gpus
from rig.processes import write_whole


def times(options, record):
    job = {
        "what": "timed",
        "schedule": "1F1B",
        "size": sized(SMALL if options.small else BIG, options.ranks // 2 if options.other else options.ranks),
        "other": options.other,
        "blocks": options.blocks,
        "iterations": options.iterations,
        "warm_up": options.warm_up,
        "watchdog_s": options.watchdog,
    }
    begin = time.monotonic()
    ranks = Ranks(options.ranks, options.python, job, run_dir=options.run_dir)
    try:
        results, codes = ranks.results_when_ended()
        print(f"== {codes}, {time.monotonic() - begin:.0f} s", ranks.said(), flush=True)
        if None in results:
            for rank in range(ranks.count):
                print(ranks.text(rank, "out"), ranks.text(rank), flush=True)
            return
    finally:
        ranks.end_all()
    record["times"] = by_way(results)
    for name, of_ranks in record["times"].items():
        print(
            name,
            "increase pct:",
            [round(value, 3) for value in increases(of_ranks[0]["iteration_ms"], of_ranks[0]["hooked"])],
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="folder of the package freeride")
    parser.add_argument("--out")
    parser.add_argument("--summary", metavar="FILE")
    parser.add_argument("--run-dir", help="where workers' sockets are; default: a folder without any")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=12, help="of a block")
    parser.add_argument("--ranks", type=int, default=0, help="default: one on each GPU")
    parser.add_argument("--warm-up", type=int, default=30)
    parser.add_argument(
        "--other", choices=["data", "tensor"], help="half as many stages as GPUs, as hook_gpu_harvest.py has it"
    )
    parser.add_argument("--small", action="store_true", help="a small model: to try out this script")
    parser.add_argument("--watchdog", type=int, default=140, help="seconds after which a run that hangs is ended")
    options = parser.parse_args()
    if options.summary:
        print(json.dumps(summarise(json.loads(pathlib.Path(options.summary).read_text())), indent=1))
        return
    if not options.python or not options.out:
        parser.error("--python and --out are needed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "times": {},
        "machine": machine(),
    }
    options.ranks = options.ranks or len(gpus())
    try:
        times(options, record)
    finally:
        summary = summarise(record)
        write_whole(options.out, json.dumps({**record, **summary}))
        print(json.dumps({**{key: value for key, value in record.items() if key != "times"}, **summary}, indent=1))


if __name__ == "__main__":
    main()
