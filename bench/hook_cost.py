#!/usr/bin/python3
"""What the hook alone costs training: I with its 95 % interval, hooked and unhooked blocks alternating within one run,
no side task.

Manager and workers run, so that marks wake somebody as they do in use; with the hook disabled, training's calls go
straight through. Both ranks switch at the same iterations. Blocks are compared in neighbouring pairs, since the
machine's speed drifts, and every other pair begins with the unhooked one; the first pair is warm-up. A block's first
iteration does not count: the hook comes on with the iteration after it."""

import argparse
import json
import os
import pathlib
import statistics
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SOURCE / "tests"))
from rig.processes import Failure, flags, rank_environments
from rig.statistics import interval
from rig.system import System, read_lines
from rig.tree import Tree

BLOCK = 5  # iterations, the first of which does not count


def hooked(block):
    """Blocks 0, 3, 4, 7, 8, … are."""
    return block % 4 in (0, 3)


RANK = """
import sys, runpy
import freeride, torch
freeride.attach()
count = 0
plain = torch.optim.AdamW.step
def step(self, *args, **kwargs):
    global count
    result = plain(self, *args, **kwargs)
    count += 1
    if count % {block} == 0:
        freeride.enable() if (count // {block}) % 4 in (0, 3) else freeride.disable("unhooked block")
    return result
torch.optim.AdamW.step = step
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(build, seconds, stages, alone):
    """Durations of the iterations of a training that switches its hook every BLOCK iterations, in ms."""
    cores = [stage % os.cpu_count() for stage in range(stages)]
    with System(Tree.of_build(build), job="gpt") as system:
        if not alone:
            system.start_manager()
            for stage, core in enumerate(cores):
                system.start_worker(f"cpu-{stage}", cores=core)
        log = system.root / "training.jsonl"
        program = [
            sys.executable,
            "-c",
            RANK.format(block=BLOCK),
            SOURCE / "hooks/examples/train_gpt.py",
            *flags(stages=stages, seconds=seconds, cores=",".join(map(str, cores)), log_json=log),
        ]
        for rank, environment in enumerate(rank_environments(stages)):
            system.start(f"rank-{rank}", [*program, "--rank", rank], environment)
        for rank in range(stages):
            system.finish(f"rank-{rank}", seconds + 120)
        rows = read_lines(log)
    # From one iteration's end to the next: what lies between two iterations counts, too.
    return [(after["end_ns"] - before["end_ns"]) / 1e6 for before, after in zip(rows, rows[1:])]


def increase(durations):
    """I in percent, half its interval's width and the number of pairs of blocks. durations[k] is iteration k + 2's."""
    blocks = {}
    for index, value in enumerate(durations):
        if (index + 1) % BLOCK != 0:
            blocks.setdefault((index + 1) // BLOCK, []).append(value)
    means = {block: statistics.mean(values) for block, values in blocks.items() if len(values) == BLOCK - 1}
    pairs = []
    for first in range(2, max(means, default=0), 2):
        on, off = (first, first + 1) if hooked(first) else (first + 1, first)
        if on in means and off in means:
            pairs.append(100 * (means[on] / means[off] - 1))
    if len(pairs) < 3:
        sys.exit(f"hook_cost: the run was too short: {len(pairs)} pairs of blocks, at least 3 are needed")
    return *interval(pairs), len(pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, help="JSON file")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument(
        "--alone", action="store_true", help="no manager and no worker: what the hook costs when nobody listens"
    )
    options = parser.parse_args()
    try:
        durations = run(options.build, options.seconds, options.stages, options.alone)
    except Failure as failure:
        sys.exit(f"hook_cost: {failure}")
    mean, half, pairs = increase(durations)
    figures = {
        "hook_time_increase_pct": round(mean, 3),
        "hook_time_increase_ci95_pct": [round(mean - half, 3), round(mean + half, 3)],
        "pairs": pairs,
        "iteration_ms": round(statistics.mean(durations), 1),
    }
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    print(
        f"hook, no side task: I = {mean:+.2f} % (95 % interval {mean - half:+.2f} to {mean + half:+.2f}, {pairs} pairs of blocks, "
        f"{figures['iteration_ms']:.0f} ms an iteration)"
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
