#!/usr/bin/env python3
"""A long training with the settings that FreeRide has by default, beside which side tasks are loaded and stopped: what the
slowdown budget makes of their cost over minutes, and what all of it costs training, starts included.

    long.py --bin DIR --plugins DIR --python DIR --out FILE           # DIR: folders of make dist's tree; a stage on each GPU
    long.py --build build/dev --cpus 2 --seconds pagerank=60,image=60 --out FILE      # to try out the script
    long.py --summary FILE [--picture FILE.png]                       # recomputes the summary; draws it

What is recorded is what any subscriber of the bus hears: each iteration of stage 0 with whether it was a baseline one, the
manager's measures once a second, and what daemons hold of the host's memory. FILE is written anew every few seconds, so
that a run that is cut off leaves what it has seen.

Rows of the summary: `side_tasks` has one of each, from its first step to the order to stop. `whole` is from the first
load to the end of the last side task: its iterations are compared with baseline ones in which nothing was started or
stopped. `lost_s` of a start is by how much the iterations with it were longer than those."""

import json
import pathlib
import subprocess
import sys
import time

import numpy
import pandas
from scipy import stats

import harvest
from rig.processes import Failure, Lines, flags, resident_mib, write_whole

TRAIN = ["batch=64", "image=224"]
ON_GPUS = {
    **harvest.ON_GPUS,
    **{name: (name, memory, TRAIN, True) for name, memory in (("resnet18", "16GiB"), ("resnet50", "24GiB"), ("vgg19", "24GiB"))},
    "image": ("image", "8GiB", ["synthetic=16384"], False),
}  # fmt: skip
EVERY_S = 5
# An iteration's letter in `kinds`: a baseline one, one in which something was started or stopped, both, none of these.
BASELINE, STARTING, BASELINE_STARTING, OTHER = "h", "s", "b", "-"
MEASURES = (
    "measured", "time_increase_pct", "time_increase_ci95_low_pct", "time_increase_ci95_high_pct", "duty_pct",
    "expected_cost_pct", "harvested_share_pct", "overrun_p99_us", "budget_pct",
)  # fmt: skip


def kind_of(event):
    if event["holdout"]:
        return BASELINE_STARTING if event["transitions"] else BASELINE
    return STARTING if event["transitions"] else OTHER


class Long(harvest.Scenario):
    def __init__(self, options):
        super().__init__(options)
        self.tasks, self.heard = self.tasks if options.cpus else ON_GPUS, None
        self.record |= {"loads": [], "memory_mib": []}

    def manager_flags(self):
        return []

    def worker_flags(self):  # a start with torch takes longer than the limits of a start by default
        return [] if self.options.cpus else flags(host_memory_bytes=64 << 30, init_ms=90000, profile_ms=90000)

    def ready(self):
        super().ready()
        words = [self.system.tree.program("freeride-ctl"), "--format", "json", "events", "--topic", "training."]
        self.heard = Lines(self.system.start("events", words, stdout=subprocess.PIPE, text=True).stdout)
        self.rest(self.options.alone)

    def rest(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.wait("the training", lambda: True, 1)
            time.sleep(max(0.0, min(EVERY_S, end - time.monotonic())))
            self.save()

    def harvest(self, name):
        """One side task on each stage: load, steps, stop."""
        plugin, memory, params, python = self.tasks[name]
        names = [f"{name}-{stage}" for stage in range(self.count)]
        load = {"side_task": name, "ordered_ns": time.monotonic_ns()}
        self.record["loads"].append(load)
        self.load(names, plugin, params, "--memory", memory, *(["--python", sys.executable] if python else []))
        for one in names:
            self.system.wait_steps(one, 1, 150)
        load["steps_ns"] = time.monotonic_ns()
        self.rest(self.options.seconds[name])
        load |= {"stop_ns": time.monotonic_ns(), "steps": [self.system.steps(one) for one in names]}
        load["verdicts"] = [verdict["kind"] for verdict in self.system.stop_tasks(*names, seconds=60)]
        load["ended_ns"] = time.monotonic_ns()
        self.save()
        print(name, json.dumps(summarise(self.record)["side_tasks"][-1]), flush=True)
        if name == list(self.options.seconds)[-1]:
            self.rest(self.options.alone)

    def save(self):
        """All that is known so far. `iterations` are stage 0's, and what each stage had in them is in the same order; 0
        where a stage has not told of one."""
        record, events = self.record, list(self.heard.lines) if self.heard else []  # the thread goes on adding to it
        told = {}
        for event in events:
            if event.get("topic", "").startswith("training.iteration/"):
                told.setdefault(event["rank"], []).append(event)
        first = told.get(0, [])
        daemons = {
            name: round(resident_mib(process.pid), 1)
            for name, process in self.system.processes.items()
            if name.startswith(("manager", "worker")) and process.poll() is None
        }
        record["memory_mib"].append([time.monotonic_ns(), *daemons.values()])
        record["memory_of"] = list(daemons)
        record["iterations"] = {
            "first_begin_ns": first[0]["begin_ns"] if first else 0,
            "begin_us": [(one["begin_ns"] - first[0]["begin_ns"]) // 1000 for one in first],
            "ms": [round((one["end_ns"] - one["begin_ns"]) / 1e6, 3) for one in first],
            "kinds": "".join(map(kind_of, first)),
        }
        record["stages"] = {}
        for rank, of_rank in sorted(told.items()):
            by_number = {one["iteration"]: one for one in of_rank}
            same = [by_number.get(one["iteration"], {"bubble_ns": 0, "harvested_ns": 0}) for one in first]
            record["stages"][str(rank)] = {
                f"{what}_ms": [round(one[f"{what}_ns"] / 1e6, 2) for one in same] for what in ("bubble", "harvested")
            }
        said = [one for one in events if one.get("topic", "").startswith("training.measures/")]
        record["measures"] = [[one["t_ns"], *(one.get(key) for key in MEASURES)] for one in said]
        record["measures_of"] = list(MEASURES)
        write_whole(self.options.out, json.dumps(record))


# ---- what it comes to
def frame_of(record):
    """A row for each iteration: begin and end in ns, ms, kind."""
    its = record["iterations"]
    frame = pandas.DataFrame({"ms": its["ms"], "kind": list(its["kinds"])})
    frame["begin"] = its["first_begin_ns"] + 1000 * numpy.array(its["begin_us"], dtype="int64")
    frame["end"] = frame.begin + frame.ms * 1e6
    return frame


def block_means(frame, kinds, size):
    """Mean iterations, in ms, of pieces of runs of `kinds`, of `size` iterations. The first iteration of a run does not count: it
    still has some of what was before it. `frame`: with its iterations' numbers as index."""
    inside = frame[frame.kind.isin(list(kinds))]
    runs = inside.groupby((inside.index.to_series().diff() != 1).cumsum()).ms
    pieces = [run.iloc[at : at + size] for _, run in runs for at in range(1, len(run), size)]
    return [piece.mean() for piece in pieces if len(piece) > size / 2]


def increase(frame, part, starts_too):
    """I of these iterations, %: the mean of the others' blocks over that of the baseline ones, with Welch's interval, as
    the manager reckons it. Neighbouring pairs would not do: where the duty changes, baseline blocks are nearer to one
    duty than to another. Baseline ones in which something was started or stopped are of neither kind.
    `starts_too`: with the others of that sort."""
    held = [run for run in "".join(one if one == BASELINE else " " for one in frame.kind).split() if run]
    size = max(2, int(numpy.median([len(run) for run in held]))) if held else 10  # a baseline block's
    base = block_means(part, BASELINE, size)
    others = block_means(part, OTHER + STARTING if starts_too else OTHER, size)
    result = {"blocks": len(others), "held_out_blocks": len(base)}
    if len(base) < 2 or len(others) < 2:
        return result
    ratio = numpy.mean(others) / numpy.mean(base)
    parts = [numpy.var(of, ddof=1) / len(of) / numpy.mean(of) ** 2 for of in (others, base)]
    half = 0.0
    if sum(parts) > 0:
        freedom = sum(parts) ** 2 / sum(one**2 / (len(of) - 1) for one, of in zip(parts, (others, base)))
        half = stats.t.ppf(0.975, max(1, int(freedom))) * ratio * sum(parts) ** 0.5
    figures = {"time_increase_pct": 100 * (ratio - 1), "time_increase_ci95_half_pct": 100 * half}
    return {**{name: round(float(value), 3) for name, value in figures.items()}, **result}


def harvested(record, part):
    """Stage by stage, of the bubbles of the iterations that are no baseline ones: what was harvested. And of those in which
    nothing was started, either: how many had steps, and what of their bubbles was harvested."""
    stages = [pandas.DataFrame(stage) for stage in record["stages"].values()]

    def shares(numbers):
        sums = [stage.reindex(numbers).sum() for stage in stages]
        return [round(100 * one.harvested_ms / one.bubble_ms, 1) if one.bubble_ms else None for one in sums]

    there = part.index[part.kind == OTHER]
    stepped = [i for i in there if any(i in stage.index and stage.harvested_ms[i] > 0 for stage in stages)]
    found = {"harvested_pct": shares(part.index[part.kind.isin([OTHER, STARTING])])}
    if stepped:
        found |= {"duty_pct": round(100 * len(stepped) / len(there), 1), "harvested_on_duty_pct": shares(stepped)}
    return found


def manager_said(record, at_ns):
    """The manager's measures at that time, of the whole training so far."""
    known = [one for one in record.get("measures", []) if one[0] <= at_ns]
    said = dict(zip(record["measures_of"], known[-1][1:])) if known else {}
    keys = ("expected_cost_pct", "time_increase_pct", "time_increase_ci95_low_pct", "time_increase_ci95_high_pct")
    return {"manager": {key: round(said[key], 3) for key in keys}} if said else {}


def start_of(frame, load):
    """From the order to the first step, and what training lost in the iterations with it."""
    found = {"start_s": round((load["steps_ns"] - load["ordered_ns"]) / 1e9, 2)}
    near = (frame.begin >= load["ordered_ns"] - 90e9) & (frame.end <= load["steps_ns"] + 90e9)
    near = frame[near & (frame.kind == BASELINE)]
    with_it = (frame.begin < load["steps_ns"]) & (frame.end > load["ordered_ns"])
    with_it = frame[with_it & frame.kind.isin([STARTING, BASELINE_STARTING])].ms
    if len(near) and len(with_it):
        lost = (with_it - near.ms.mean()).sum() / 1e3
        found |= {"beside_training_s": round(with_it.sum() / 1e3, 2), "lost_s": round(lost, 3)}
        found["longest_iteration_ms"] = float(with_it.max())
    return found


def summarise(record):
    frame = frame_of(record)

    def row(from_ns, to_ns, starts_too):
        part = frame[(frame.begin >= from_ns) & (frame.end <= to_ns)]
        held = part.kind.isin([BASELINE, BASELINE_STARTING])
        return {
            "seconds": round((to_ns - from_ns) / 1e9, 1),
            "iterations": len(part),
            "held_out_pct": round(100 * float(held.mean()), 1) if len(part) else 0,
            **increase(frame, part, starts_too),
            **harvested(record, part),
            **manager_said(record, to_ns),
        }

    loads = [load for load in record["loads"] if "steps_ns" in load]
    last_ns = int(frame.end.max()) if len(frame) else 0
    rows = [
        {"side_task": load["side_task"], **row(load["steps_ns"], load.get("stop_ns", last_ns), False),
         **start_of(frame, load), "verdicts": load.get("verdicts")}
        for load in loads
    ]  # fmt: skip
    summary, samples = {"side_tasks": rows}, record["memory_mib"]
    ended = [load["ended_ns"] for load in loads if "ended_ns" in load]
    if ended:
        summary["whole"] = row(record["loads"][0]["ordered_ns"], ended[-1], True)
    if len(samples) > 2:
        memory = pandas.DataFrame(samples).iloc[[0, len(samples) // 2, -1], 1:].to_numpy().T
        times = ("first", "half time", "last")
        summary["memory_mib"] = {
            name: dict(zip(times, map(float, of))) for name, of in zip(record["memory_of"], memory)
        }
    return summary


def draw(record, path):
    """Minute by minute: the manager's own estimate of I, with its interval, and the duty."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "savefig.dpi": 110})
    import matplotlib.pyplot as plt

    begin = record["loads"][0]["ordered_ns"]
    shown = pandas.DataFrame(record["measures"], columns=["at", *record["measures_of"]])
    shown["at"] = (shown["at"] - begin) / 60e9
    shown = shown[shown["at"] >= -0.5]
    known = shown[shown.measured.astype(bool)]
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(9.5, 5), sharex=True, layout="constrained")
    band = (known["at"], known.time_increase_ci95_low_pct, known.time_increase_ci95_high_pct)
    upper.fill_between(*band, color="#2a7f62", alpha=0.2, linewidth=0, label="its 95 % interval")
    upper.plot(known["at"], known.time_increase_pct, color="#2a7f62", label="slowdown so far")
    budget = shown.budget_pct.iloc[-1] if "budget_pct" in shown else 1.0  # of records that do not say it
    upper.axhline(budget, color="#c44536", linewidth=1, linestyle="--", label="slowdown budget")
    upper.set(ylabel="training slower by, %", ylim=(-1, 3))
    lower.plot(shown["at"], shown.duty_pct, color="#5aa9e6")
    lower.set(ylabel="duty, %", ylim=(0, 105), xlabel="minutes since the first load")
    for load in record["loads"]:
        if "stop_ns" in load:
            span = [(load[key] - begin) / 60e9 for key in ("steps_ns", "stop_ns")]
            for axes in (upper, lower):
                axes.axvspan(*span, color="#888888", alpha=0.08, linewidth=0)
            upper.text(sum(span) / 2, 2.75, load["side_task"], ha="center")
    upper.legend(frameon=False, fontsize=8, loc="lower right", ncols=3)
    figure.savefig(path)


def main():
    parser = harvest.parser_of(__doc__)
    parser.set_defaults(seconds="pagerank=360,resnet18=300,vgg19=360,resnet50=300", blocks=0, iterations=1)
    parser.set_defaults(warm_up=12, watchdog=1700, synchronise=True)
    parser.add_argument("--alone", type=float, default=15, help="seconds of training alone, before and after")
    parser.add_argument("--picture", metavar="FILE", help="of the run in --summary's file")
    options = parser.parse_known_args()[0]
    if options.summary and options.picture:
        draw(json.loads(pathlib.Path(options.summary).read_text()), options.picture)
    try:
        harvest.main(Long, parser, summarise)
    except Failure as failure:
        sys.exit(f"long: {failure}")


if __name__ == "__main__":
    main()
