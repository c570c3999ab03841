#!/usr/bin/env python3
"""A long training with the settings that FreeRide has by default, beside which side tasks are loaded and stopped: what the
slowdown budget makes of their cost over minutes, and what all of it costs training, starts included.

    long.py --gpus --bin DIR --plugins DIR --python DIR --out FILE    # DIR: folders of make dist's tree; a stage on each GPU
    long.py --build build/dev --seconds pagerank=60,image=60 --out FILE    # on CPUs: to try out the script
    long.py --summary FILE [--picture FILE.png]                       # recomputes the summary; draws it

What is recorded is what any subscriber of the bus hears: each iteration of stage 0 with whether it was held out, the
manager's measures once a second, and what daemons hold of the host's memory. FILE is written anew every few seconds, so
that a run that is cut off leaves what it has seen.

Rows of the summary: `side_tasks` has one of each, from its first step to the order to stop. `whole` is from the first
load to the end of the last side task: its iterations are compared with held-out ones in which nothing was started or
stopped. `lost_s` of a start is by how much the iterations with it were longer than those."""

import argparse
import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "tests"), str(HERE / "gpu")]
from rig.processes import Failure, flags, write_whole
from rig.statistics import t975
from rig.system import System
from rig.tree import Tree, folder

ORKUT = ["vertices=3072441", "edges=117185083"]  # SNAP's com-Orkut, as large
TRAIN = ["batch=64", "image=224"]
ON_GPUS = {  # plugin: memory, parameters
    "pagerank": ("8GiB", [*ORKUT, "tolerance=0", "max_iterations=1000000"]),
    "resnet18": ("16GiB", TRAIN),
    "resnet50": ("24GiB", TRAIN),
    "vgg19": ("24GiB", TRAIN),
    "image": ("8GiB", ["synthetic=16384"]),
}
ON_CPUS = {
    "pagerank": ("256MiB", ["scale=10", "tolerance=0", "max_iterations=1000000"]),
    "image": ("256MiB", ["synthetic=200", "width=100"]),
}
PYTHON = ("resnet18", "resnet50", "vgg19")  # need the torch of this Python
EVERY_S = 5
DEFAULT_BUDGET_PCT = 1.0  # of records that do not say it
# An iteration's letter in `kinds`
HELD_OUT, STARTING, HELD_OUT_STARTING, OTHER = "h", "s", "b", "-"
MEASURES = (
    "measured", "time_increase_pct", "time_increase_ci95_low_pct", "time_increase_ci95_high_pct", "duty_pct",
    "expected_cost_pct", "harvested_share_pct", "overrun_p99_us", "budget_pct",
)  # fmt: skip


class Heard:
    """What the bus says, read on a thread of its own: iterations of each rank, and the job's measures."""

    def __init__(self, stream):
        self.iterations, self.measures = {}, []
        self._stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for text in self._stream:
            try:
                event = json.loads(text)
            except ValueError:  # the last line, of a program that was ended
                continue
            if event.get("topic", "").startswith("training.iteration/"):
                self.iterations.setdefault(event["rank"], []).append(event)
            elif event.get("topic", "").startswith("training.measures/"):
                self.measures.append((time.monotonic_ns(), {key: event.get(key) for key in MEASURES}))


def kind_of(event):
    if event["holdout"]:
        return HELD_OUT_STARTING if event["transitions"] else HELD_OUT
    return STARTING if event["transitions"] else OTHER


def memory_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


class Long:
    def __init__(self, options):
        self.options = options
        tree = Tree.of_build(options.build) if options.build else Tree(options.bin, options.plugins, options.python)
        self.system = System(tree, job=None if options.gpus else "long", outside_tmp=True)
        self.ranks, self.until, self.heard = None, self.system.root / "until", None
        self.tasks = ON_GPUS if options.gpus else ON_CPUS
        self.record = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": "bench/long.py " + " ".join(f"{name}={seconds:g}" for name, seconds in options.seconds.items()),
            "commit": options.commit,
            "loads": [],
            "memory_mib": [],
            "failures": [],
        }

    # ---- the system
    def devices(self):
        if not self.options.gpus:
            return [f"cpu-{core}" for core in range(self.options.stages)]
        from rig.gpus import gpus

        return [gpu.uuid for gpu in gpus()]

    def up(self):
        system, devices = self.system, self.devices()
        system.start_manager()
        for at, device in enumerate(devices):
            more = flags(state_dir=system.root / f"s{at}", sandbox=self.options.sandbox)
            if self.options.gpus:  # a start with torch takes longer than the limits of a start by default
                more += flags(host_memory_bytes=64 << 30, init_ms=90000, profile_ms=90000)
            system.start_worker(device, *more, wait=False)
        system.wait_workers(len(devices))
        words = [system.tree.program("freeride-ctl"), "--format", "json", "events", "--topic", "training."]
        self.heard = Heard(system.start("events", words, stdout=subprocess.PIPE, text=True).stdout)
        self.train(len(devices))
        self.wait(lambda: len(self.heard.iterations.get(0, ())) > 20, "the training's first iterations", 180)

    def train(self, count):
        if not self.options.gpus:
            self.record["machine"] = [f"{os.cpu_count()} cores"]
            self.system.start_training(
                stages=count, seconds=sum(self.options.seconds.values()) + 600, cores=",".join(map(str, range(count)))
            )
            return
        from ranks import BIG, Ranks, machine, sized

        self.record["machine"] = machine()
        job = {"what": "timed", "schedule": "1F1B", "size": sized(BIG, count), "blocks": 0, "iterations": 1,
               "warm_up": 12, "until": str(self.until), "watchdog_s": self.options.watchdog, "synchronise": True}  # fmt: skip
        self.ranks = Ranks(count, self.options.python, job, run_dir=self.system.run_dir)

    def wait(self, done, what, seconds):
        def looked():
            if self.ranks is not None:
                self.ranks.check()
            return done()

        return self.system.wait(looked, what, seconds)

    def end_training(self):
        if self.ranks is None:
            self.system.processes.pop("training").terminate()
            return
        last = self.heard.iterations[0][-1]["iteration"]
        write_whole(self.until, str(last + 200))  # `until` counts from the training's start, the hook from its own
        _, codes = self.ranks.results_when_ended()
        self.record["ranks_ended"] = codes

    # ---- what happens beside training
    def rest(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.system.check()
            if self.ranks is not None:
                self.ranks.check()
            time.sleep(max(0.0, min(EVERY_S, end - time.monotonic())))
            self.save()

    def turn(self, plugin, seconds):
        """One side task on each stage: load, steps, stop."""
        memory, params = self.tasks[plugin]
        names = [f"{plugin}-{stage}" for stage in range(len(self.devices()))]
        words = ["--memory", memory, *(["--python", sys.executable] if plugin in PYTHON and self.options.gpus else [])]
        load = {"side_task": plugin, "ordered_ns": time.monotonic_ns()}
        self.record["loads"].append(load)
        for stage, name in enumerate(names):
            self.system.load(self.system.tree.plugins / f"{plugin}.so", name, "--stage", stage, *words, params=params)
        for name in names:
            self.system.wait_steps(name, 1, 150)
        load["steps_ns"] = time.monotonic_ns()
        self.rest(seconds)
        load["stop_ns"] = time.monotonic_ns()
        load["steps"] = [self.system.steps(name) for name in names]
        load["verdicts"] = [verdict["kind"] for verdict in self.system.stop_tasks(*names, seconds=60)]
        load["ended_ns"] = time.monotonic_ns()
        self.save()
        print(plugin, json.dumps(summarise(self.record)["side_tasks"][-1]), flush=True)

    def save(self):
        """All that is known so far. `iterations` are stage 0's, and what each stage had in them is in the same order; 0
        where a stage has not told of one."""
        heard, record = self.heard, self.record
        of_first = list(heard.iterations.get(0, []))  # the thread goes on adding to it
        sampled = {
            name: memory_mib(process.pid)
            for name, process in self.system.processes.items()
            if name.startswith(("manager", "worker")) and process.poll() is None
        }
        record["memory_mib"].append([time.monotonic_ns(), *sampled.values()])
        record["memory_of"] = list(sampled)
        record["iterations"] = {
            "first_begin_ns": of_first[0]["begin_ns"] if of_first else 0,
            "begin_us": [(one["begin_ns"] - of_first[0]["begin_ns"]) // 1000 for one in of_first],
            "ms": [round((one["end_ns"] - one["begin_ns"]) / 1e6, 3) for one in of_first],
            "kinds": "".join(map(kind_of, of_first)),
        }
        record["stages"] = {}
        for rank, events in sorted(heard.iterations.items()):
            told = {one["iteration"]: one for one in list(events)}
            same = [told.get(one["iteration"], {"bubble_ns": 0, "harvested_ns": 0}) for one in of_first]
            record["stages"][str(rank)] = {
                "bubble_ms": [round(one["bubble_ns"] / 1e6, 2) for one in same],
                "harvested_ms": [round(one["harvested_ns"] / 1e6, 2) for one in same],
            }
        record["measures"] = [[at, *one.values()] for at, one in heard.measures]
        record["measures_of"] = list(MEASURES)
        write_whole(self.options.out, json.dumps(record))

    def run(self):
        try:
            self.up()
            self.rest(self.options.alone)
            for plugin, seconds in self.options.seconds.items():
                try:
                    self.turn(plugin, seconds)
                except Failure as failure:
                    print(f"FAILED: {plugin}: {failure}", flush=True)
                    self.record["failures"].append(f"{plugin}: {str(failure)[:400]}")
                    self.system.check()
            self.rest(self.options.alone)
            self.end_training()
        finally:
            if self.heard is not None:
                self.save()
            if self.ranks is not None:
                self.ranks.end_all()
            self.system.end_all()
            if not self.record["failures"]:
                self.system.close()


# ---- what it comes to
def within(record, from_ns, to_ns, whole=True):
    """Numbers of the iterations that lie in between; whole=False: of those, too, of which a part does."""
    its, found = record["iterations"], []
    for i, (begin_us, ms) in enumerate(zip(its["begin_us"], its["ms"])):
        begin = its["first_begin_ns"] + begin_us * 1000
        end = begin + ms * 1e6
        if (from_ns <= begin and end <= to_ns) if whole else (begin < to_ns and end > from_ns):
            found.append(i)
    return found


def block_means(record, numbers, kinds):
    """Mean iterations, in ms, of pieces of runs of `kinds`, as long as a block of held-out ones is. The first iteration
    of a run does not count: it still has some of what was before it."""
    its, runs = record["iterations"], {True: [], False: []}
    for i in numbers:
        inside = its["kinds"][i] in kinds
        last = runs[inside][-1] if runs[inside] else []
        if last and last[-1] == i - 1:
            last.append(i)
        else:
            runs[inside].append([i])
    held = [len(run) for run in runs_of(its["kinds"])]
    size = max(2, int(statistics.median(held))) if held else 10
    return [
        statistics.fmean(its["ms"][i] for i in run[at : at + size])
        for run in runs[True]
        for at in range(1, len(run), size)
        if len(run[at : at + size]) > size / 2
    ]


def runs_of(kinds):
    return [run for run in "".join(one if one == HELD_OUT else " " for one in kinds).split() if run]


def increase(record, numbers, starts_too):
    """I of these iterations, %: the mean of the others' blocks over that of the held-out ones, with Welch's interval, as
    the manager reckons it. Neighbouring pairs would not do: where the duty changes, held-out blocks are nearer to one
    duty than to another. Those that are held out and in which something was started or stopped are of neither kind.
    `starts_too`: with the others of that sort."""
    held = block_means(record, numbers, HELD_OUT)
    others = block_means(record, numbers, OTHER + STARTING if starts_too else OTHER)
    result = {"blocks": len(others), "held_out_blocks": len(held)}
    if len(held) < 2 or len(others) < 2:
        return result
    ratio = statistics.fmean(others) / statistics.fmean(held)
    parts = [statistics.variance(of) / len(of) / statistics.fmean(of) ** 2 for of in (others, held)]
    half = 0.0
    if sum(parts) > 0:
        freedom = sum(parts) ** 2 / sum(part**2 / (len(of) - 1) for part, of in zip(parts, (others, held)))
        half = t975(max(1, int(freedom))) * ratio * sum(parts) ** 0.5
    return {
        "time_increase_pct": round(100 * (ratio - 1), 3),
        "time_increase_ci95_half_pct": round(100 * half, 3),
        **result,
    }


def harvested_pct(record, numbers):
    """Of the bubbles of the iterations that are not held out, stage by stage."""
    kinds, found = record["iterations"]["kinds"], []
    for stage in record["stages"].values():
        there = [i for i in numbers if i < len(stage["bubble_ms"]) and kinds[i] in (OTHER, STARTING)]
        bubbles = sum(stage["bubble_ms"][i] for i in there)
        found.append(round(100 * sum(stage["harvested_ms"][i] for i in there) / bubbles, 1) if bubbles else None)
    return found


def on_duty(record, numbers):
    """Of the iterations that are neither held out nor of a start: how many had steps, and what of the bubbles of these
    was harvested, stage by stage."""
    kinds, stages = record["iterations"]["kinds"], list(record["stages"].values())
    there = [i for i in numbers if kinds[i] == OTHER and all(i < len(one["bubble_ms"]) for one in stages)]
    stepped = [i for i in there if any(one["harvested_ms"][i] > 0 for one in stages)]
    if not stepped:
        return {}
    return {
        "duty_pct": round(100 * len(stepped) / len(there), 1),
        "harvested_on_duty_pct": [
            round(100 * sum(one["harvested_ms"][i] for i in stepped) / sum(one["bubble_ms"][i] for i in stepped), 1)
            for one in stages
        ],
    }


def manager_said(record, at_ns):
    """The manager's measures at that time, of the whole training so far."""
    known = [one for one in record.get("measures", []) if one[0] <= at_ns]
    if not known:
        return {}
    said = dict(zip(record["measures_of"], known[-1][1:]))
    keys = ("expected_cost_pct", "time_increase_pct", "time_increase_ci95_low_pct", "time_increase_ci95_high_pct")
    return {"manager": {key: round(said[key], 3) for key in keys}}


def start_of(record, load):
    """From the order to the first step, and what training lost in the iterations with it."""
    its = record["iterations"]
    near = [its["ms"][i] for i in within(record, load["ordered_ns"] - 90e9, load["steps_ns"] + 90e9)
            if its["kinds"][i] == HELD_OUT]  # fmt: skip
    with_it = [
        i
        for i in within(record, load["ordered_ns"], load["steps_ns"], whole=False)
        if its["kinds"][i] in (STARTING, HELD_OUT_STARTING)
    ]
    if not near or not with_it:
        return {"start_s": round((load["steps_ns"] - load["ordered_ns"]) / 1e9, 2)}
    plain = statistics.fmean(near)
    return {
        "start_s": round((load["steps_ns"] - load["ordered_ns"]) / 1e9, 2),
        "beside_training_s": round(sum(its["ms"][i] for i in with_it) / 1e3, 2),
        "lost_s": round(sum(its["ms"][i] - plain for i in with_it) / 1e3, 3),
        "longest_iteration_ms": max(its["ms"][i] for i in with_it),
    }


def summarise(record):
    rows, its = [], record["iterations"]
    for load in record["loads"]:
        if "steps_ns" not in load:
            continue
        numbers = within(record, load["steps_ns"], load.get("stop_ns", 1 << 62))
        rows.append(
            {
                "side_task": load["side_task"],
                "seconds": round((load.get("stop_ns", load["steps_ns"]) - load["steps_ns"]) / 1e9, 1),
                "iterations": len(numbers),
                "held_out_pct": round(100 * sum(its["kinds"][i] in "hb" for i in numbers) / max(1, len(numbers)), 1),
                **increase(record, numbers, False),
                "harvested_pct": harvested_pct(record, numbers),
                **on_duty(record, numbers),
                **manager_said(record, load.get("stop_ns", 0)),
                **start_of(record, load),
                "verdicts": load.get("verdicts"),
            }
        )
    summary = {"side_tasks": rows}
    ended = [load["ended_ns"] for load in record["loads"] if "ended_ns" in load]
    if ended:
        numbers = within(record, record["loads"][0]["ordered_ns"], ended[-1])
        summary["whole"] = {
            "seconds": round((ended[-1] - record["loads"][0]["ordered_ns"]) / 1e9, 1),
            "iterations": len(numbers),
            "held_out_pct": round(100 * sum(its["kinds"][i] in "hb" for i in numbers) / max(1, len(numbers)), 1),
            **increase(record, numbers, True),
            "harvested_pct": harvested_pct(record, numbers),
            **on_duty(record, numbers),
            **manager_said(record, ended[-1]),
        }
    samples = record["memory_mib"]
    if len(samples) > 2:
        middle = samples[len(samples) // 2]
        summary["memory_mib"] = {
            name: {"first": samples[0][at], "half time": middle[at], "last": samples[-1][at]}
            for at, name in enumerate(record["memory_of"], 1)
            if len(middle) > at and len(samples[-1]) > at
        }
    return summary


def draw(record, path):
    """Minute by minute: the manager's own estimate of I, with its interval, and the duty."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "savefig.dpi": 110})
    import matplotlib.pyplot as plt

    names = dict(zip(record["measures_of"], range(1, 99)))
    begin = record["loads"][0]["ordered_ns"]

    def minutes(ns):
        return (ns - begin) / 60e9

    shown = [one for one in record["measures"] if one[0] >= begin - 30e9]
    known = [one for one in shown if one[names["measured"]]]
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(9.5, 5), sharex=True, layout="constrained")
    at = [minutes(one[0]) for one in known]
    upper.fill_between(
        at,
        [one[names["time_increase_ci95_low_pct"]] for one in known],
        [one[names["time_increase_ci95_high_pct"]] for one in known],
        color="#2a7f62", alpha=0.2, linewidth=0, label="its 95 % interval",
    )  # fmt: skip
    upper.plot(at, [one[names["time_increase_pct"]] for one in known], color="#2a7f62", label="slowdown so far")
    budget = shown[-1][names["budget_pct"]] if "budget_pct" in names else DEFAULT_BUDGET_PCT
    upper.axhline(budget, color="#c44536", linewidth=1, linestyle="--", label="slowdown budget")
    upper.set_ylabel("training slower by, %")
    upper.set_ylim(-1, 3)
    at = [minutes(one[0]) for one in shown]
    lower.plot(at, [one[names["duty_pct"]] for one in shown], color="#5aa9e6")
    lower.set_ylabel("duty, %")
    lower.set_ylim(0, 105)
    lower.set_xlabel("minutes since the first load")
    for load in record["loads"]:
        if "stop_ns" not in load:
            continue
        for axes in (upper, lower):
            axes.axvspan(minutes(load["steps_ns"]), minutes(load["stop_ns"]), color="#888888", alpha=0.08, linewidth=0)
        upper.text(minutes((load["steps_ns"] + load["stop_ns"]) / 2), 2.75, load["side_task"], ha="center")
    upper.legend(frameon=False, fontsize=8, loc="lower right", ncols=3)
    figure.savefig(path)


def told_seconds(text):
    return {one.partition("=")[0]: float(one.partition("=")[2]) for one in text.split(",")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=folder, help="a build's folder, instead of the next three")
    parser.add_argument("--bin", type=folder)
    parser.add_argument("--plugins", type=folder)
    parser.add_argument("--python", type=folder, help="folder of the package freeride")
    parser.add_argument("--gpus", action="store_true", help="a stage on each GPU, instead of on CPUs")
    parser.add_argument("--stages", type=int, default=2, help="on CPUs")
    parser.add_argument("--seconds", type=told_seconds, default="pagerank=360,resnet18=300,vgg19=360,resnet50=300",
                        help="which side tasks, in which order, and for how long")  # fmt: skip
    parser.add_argument("--alone", type=float, default=15, help="seconds of training alone, before and after")
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--watchdog", type=int, default=1700, help="seconds after which the ranks end in any case")
    parser.add_argument("--commit", default="", help="which version this is, for the record")
    parser.add_argument("--out")
    parser.add_argument("--summary", metavar="FILE")
    parser.add_argument("--picture", metavar="FILE", help="of the run in --summary's file")
    options = parser.parse_args()
    if options.summary:
        record = json.loads(pathlib.Path(options.summary).read_text())
        print(json.dumps(summarise(record), indent=1))
        if options.picture:
            draw(record, options.picture)
        return
    if not options.out or not (options.build or (options.bin and options.plugins and options.python)):
        parser.error("--out, and --build or --bin, --plugins and --python are needed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    long = Long(options)
    try:
        long.run()
    except Failure as failure:
        sys.exit(f"long: {failure}")
    print(json.dumps(summarise(long.record)), flush=True)


if __name__ == "__main__":
    main()
