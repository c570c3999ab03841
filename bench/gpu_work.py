#!/usr/bin/env python3
"""Side tasks that were not written with bubbles in mind, in a training's bubbles: when the first step comes after `load`,
how much of the bubbles becomes work that the same program does alone, and what it costs training.

    gpu_work.py --bin DIR --plugins DIR --python DIR --out FILE [--replay FILE --stage N]     # as hook_gpu_harvest.py

useful_share_pct: steps made in bubbles, over what the program alone makes on the same GPU in as much time as these bubbles
last. Python's tasks run in this Python, with its torch and transformers."""

import json
import os
import statistics
import subprocess
import sys
import time

import hook_gpu_harvest as harvest

import summary as summary_of
from rig.shim_page import counters_of

TASKS = {
    "generation": (str(harvest.HERE / "gpu/eager_generation.py"), "24GiB", ["length=96"], True),
    "training": (str(harvest.HERE.parent / "plugins/python/resnet18.py"), "16GiB", ["batch=64"], True),
}
# The driver is asked for memory in first steps, which take some times as long: of generation, once for each length that its
# cache can have. `alone` does not count them either.
FIRST_STEPS = {"generation": 130, "training": 40, "generate": 200, "evaluate": 20}
FIRST_STEPS_S = 100
# Of a program's shim page.
COUNTED = (
    "submissions waits waited_ns captured longest_ns leases too_long let_in stalled late late_most_ns full full_ns"
).split()


class WorkRun(harvest.Run):
    tasks = TASKS

    def __init__(self, options):
        super().__init__(options)
        harvest.TASKS.update(self.tasks)
        self.record["alone"] = {name: self.alone(name) for name in options.seconds if name in self.tasks}
        self.first_step_s, self.names, self.made = None, [], []
        print("alone", json.dumps(self.record["alone"]), flush=True)

    def alone(self, name):
        file, _, params, _ = self.tasks[name]
        return alone(file, params, self.devices()[0])

    def load(self, names, plugin, params, *words):
        self.names = names
        super().load(names, plugin, params, *words, *self.options.load.split())

    def wait_steps(self, names, seconds):
        """Longer than elsewhere: a first step that comes late is a figure here."""
        begin, first = time.monotonic(), {}

        def look():
            for name in names:
                if name not in first and self.system.steps(name):
                    first[name] = time.monotonic() - begin
            return len(first) == len(names)

        try:
            self.wait("a first step", look, 120)
        except harvest.Failure:
            for name in names:
                print(f"-- why {name}\n{self.system.ctl('why', name).out}", flush=True)
            raise
        self.first_step_s = round(max(first.values()), 2)
        print(f"-- first step after {self.first_step_s} s; what the worker said until then", flush=True)
        for line in self.system.log(self.workers[0], 1 << 20).splitlines():
            if any(name in line for name in names):
                print(line, flush=True)
        super().wait_steps(names, seconds)
        first_steps = FIRST_STEPS.get(names[0].rstrip("0123456789s"), 0)
        until = time.monotonic() + FIRST_STEPS_S
        while min(self.done()) < first_steps and time.monotonic() < until:
            time.sleep(0.2)

    def done(self):
        """Steps that each side task has made so far; with the imperative interface, whose steps are leases that were used, by
        its own count."""
        return [steps_of(self.system.info(name)) for name in self.names]

    def observe(self, name, seconds, workers=None):
        before = self.done()
        seen = super().observe(name, seconds, workers)
        self.made = [now - then for now, then in zip(self.done(), before)]
        self.counted = self.counters()  # while the side task is there
        return seen

    def counters(self):
        """What the shim of libcuda has counted, for each side task that has it."""
        found = []
        for page in sorted(self.system.root.rglob("*.shim")):
            if page.is_file():
                counted = counters_of(page.read_bytes())
                found.append({name: counted[name] for name in COUNTED})
        return found

    def keep(self, sample, seen):
        sample.update(first_step_s=self.first_step_s, made=self.made, shim=self.counted)
        super().keep(sample, seen)
        print(json.dumps(row_of(sample, self.record["alone"])), flush=True)

    def summary(self):
        return {
            **super().summary(),
            "rows": [row_of(sample, self.record["alone"]) for sample in self.record["samples"]],
        }


def steps_of(task):
    counters = task["state"]["counters"]
    leases = task["load"]["params"].get("interface") == "imperative"
    return counters["metrics"].get("steps", 0) if leases else counters["steps"]


def on_device(device):
    """The environment of a program that is to use this GPU; None: any."""
    return {**os.environ, **({"CUDA_VISIBLE_DEVICES": device} if device else {})}


def alone(file, params, device=None):
    done = subprocess.run(
        [sys.executable, harvest.HERE / "gpu/alone.py", file, *params],
        env=on_device(device),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise harvest.Failure(f"{file} alone: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def row_of(sample, alone_of):
    of = summary_of.row_of(sample)
    possible = [alone_of[sample["name"]]["steps_per_s"] * ns / 1e9 for ns in sample["bubble_ns"]]
    half = of.get("time_increase_ci95_half_pct")
    return {
        "task": sample["name"],
        "first_step_s": sample["first_step_s"],
        "useful_share_pct": round(100 * sum(sample["made"]) / sum(possible), 2) if sum(possible) else None,
        "useful_share_by_stage_pct": [
            round(100 * made / most, 2) if most else None for made, most in zip(sample["made"], possible)
        ],
        "time_increase_pct": of.get("time_increase_pct"),
        "time_increase_ci95_upper_pct": None if half is None else round(of["time_increase_pct"] + half, 3),
        **{
            name: of[name]
            for name in ("settled_increase_pct", "settled_increase_ci95_half_pct", "far_off_pct")
            if name in of
        },
        "harvested_share_pct": of["harvested_share_pct"],
        "overrun_p99_us": of["overrun_p99_us"],
        "bubble_ms": [statistics.fmean(lengths) if lengths else None for lengths in sample["lengths_ms"]],
        "step_alone_ms": alone_of[sample["name"]]["step_p50_ms"],
        **({"shim": sample["shim"]} if sample.get("shim") else {}),
    }


def main():
    parser = harvest.parser_of(__doc__.splitlines()[0])
    parser.set_defaults(seconds="generation=60,training=60", blocks=2, iterations=4)
    parser.add_argument("--load", default="--interface imperative", help="more flags of freeride-ctl load")
    options = parser.parse_args()
    if not (options.bin and options.plugins and options.python and options.out):
        parser.error("--bin, --plugins, --python and --out are needed")
    harvest.run_all(options, WorkRun)


if __name__ == "__main__":
    main()
