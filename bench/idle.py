#!/usr/bin/env python3
"""Idle phases on one GPU: how much of them side tasks get, what that costs training, how soon the GPU is given back, what a side task's
start inside a phase costs, and how long a whole process's hand-over by the driver's checkpoints takes beside it.

    idle.py --bin DIR --plugins DIR --python DIR --out bench/results/idle-h200.json     # DIR: folders of make dist's tree
    idle.py --build build/dev --cpus --out FILE                                         # on CPUs: to try it out
    idle.py --summary FILE                                                              # recomputes the figures from the samples

The trainings are the example's reinforcement learning (hooks/examples/grpo.py), with a policy as large as GPT-2, and a model of 2 GB
that is saved now and then (gpu/saving.py). The example's own work varies with its host by a third, so what side tasks cost is measured
beside the same policy whose GPU is never behind (gpu/rollouts.py). Without a budget; half of the iterations are baseline iterations, with which the others
are compared: by their updates alone, since a rollout lasts as long as it takes, with side tasks and without."""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "tests"), str(HERE / "gpu")]
import analysis

from harvest import ON_GPUS, tree_options
from ranks import machine
from rig.gpus import gpus
from rig.processes import flags, write_whole
from rig.system import System, read_lines
from rig.tree import Tree

SPIN = ("gpu_task", "2GiB", ["how=work", "after=0", "step_us=1000"], False)
ON_CPUS = {"pagerank": ("pagerank", "256MiB", ["scale=10", "tolerance=0", "max_iterations=1000000"], False)}
BUBBLE = (
    "phase",
    "iteration",
    "begin_ns",
    "end_ns",
    "harvested_ns",
    "overrun_ns",
    "leased",
    "holdout",
    "side_begin_ns",
)
ITERATION = ("iteration", "begin_ns", "end_ns", "holdout", "harvested", "transitions")
LOGGED = ("begin_ns", "rollout_end_ns", "end_ns", "loss")


class Run:
    """One training with a worker beside it, and all that the bus says of both."""

    def __init__(self, options, words, job, env=None):
        tree = Tree.of_build(options.build) if options.build else Tree(options.bin, options.plugins, options.python)
        self.options, self.heard = options, {"bubble.end": [], "training.iteration": []}
        self.system = System(tree, job=job, outside_tmp=not options.cpus, env=env)
        self.tasks = dict(ON_CPUS if options.cpus else {**ON_GPUS, "spin": SPIN})
        self.named, self.log = 0, self.system.root / "training.jsonl"
        self.system.start_manager(*flags(baseline_pct=50, baseline_block_ms=options.block_ms, budget_pct=100))
        device = "cpu-0" if options.cpus else gpus()[0].uuid
        more = [] if options.cpus else flags(host_memory_bytes=32 << 30, init_ms=90000)
        self.system.start_worker(device, *flags(sandbox=options.sandbox), *more)
        for topic in self.heard:
            self.listen(topic)
        words = [str(word).replace("LOG", str(self.log)) for word in words]
        self.system.start("training", [sys.executable, *words], env={"FREERIDE_DEVICE": device}, stdout=True)
        self.system.wait_workers(1, True, 120)

    def listen(self, topic):
        words = [self.system.tree.program("freeride-ctl"), "events", "--topic", topic, "--format", "json"]
        process = self.system.start(f"events-{topic}", words, stdout=subprocess.PIPE, text=True)

        def read():
            for line in process.stdout:
                event = json.loads(line)
                self.heard[topic].append(event.get("event", event.get("data", event)))

        threading.Thread(target=read, daemon=True).start()

    def count(self, phase=None):
        return sum(phase in (None, one.get("phase")) for one in list(self.heard["bubble.end"]))

    def wait_phases(self, more, seconds, phase=None):
        before = self.count(phase)
        self.system.wait(lambda: self.count(phase) >= before + more, f"{more} more phases", seconds)

    def load(self, name):
        """Loads a side task and waits for its steps; how long that took."""
        plugin, memory, params, python = self.tasks[name]
        self.named += 1
        task, begin = f"{name}{self.named}", time.monotonic()
        words = ["--memory", memory, *(["--python", sys.executable] if python else [])]
        self.system.load(self.system.tree.plugins / f"{plugin}.so", task, *words, params=params)
        self.system.wait_steps(task, 9, 180)
        return task, time.monotonic() - begin

    def beside(self, name, seconds):
        """What is heard while a side task is there."""
        task, started_s = self.load(name)
        print(f"{name}: steps after {started_s:.1f} s", flush=True)
        from_ns = time.monotonic_ns()
        time.sleep(seconds)
        until_ns = time.monotonic_ns()
        self.system.stop_tasks(task, seconds=30)
        return {
            "name": name,
            "seconds": seconds,
            "load_to_steps_s": round(started_s, 2),
            **self.between(from_ns, until_ns),
        }

    def between(self, from_ns, until_ns):
        time.sleep(1.2)  # the bus is behind

        def of(lines, keys):
            mine = [one for one in list(lines) if from_ns <= one["begin_ns"] and one["end_ns"] <= until_ns]
            return [{key: one.get(key) for key in keys} for one in mine]

        logged = read_lines(self.log) if self.log.exists() else []
        return {
            "bubbles": of(self.heard["bubble.end"], BUBBLE),
            "iterations": of(self.heard["training.iteration"], ITERATION),
            "logged": of(logged, LOGGED),
        }

    def starts(self, name, times):
        """Starts and stops a side task; what is heard meanwhile."""
        from_ns = time.monotonic_ns()
        for _ in range(times):
            task, _ = self.load(name)
            self.wait_phases(1, 60)
            self.system.stop_tasks(task, seconds=30)
            self.wait_phases(2, 90)
        return {"name": name, "starts": times, **self.between(from_ns, time.monotonic_ns())}

    def end(self):
        text = self.system.log("training", 4000)
        report = self.system.ctl("report")
        print(report.text if hasattr(report, "text") else report, flush=True)
        self.system.close()
        return text


# ---- the parts


def reinforcement(options, rollout_s):
    """The example, with a rollout of at least so many seconds in each iteration."""
    large = flags(device="cuda", size="gpt2", prompts=8, group=16, answer=8, epochs=16, threads=8)
    words = flags(iterations=1_000_000, rollout_s=rollout_s, log_json="LOG")
    words = [HERE.parent / "hooks/examples/grpo.py", *words, *([] if options.cpus else large)]
    return Run(options, words, "rl")


def short(options, record):
    run = reinforcement(options, options.rollout_s)
    try:
        run.wait_phases(4, 200)
        for name, seconds in options.seconds.items():
            record["rl"].append(run.beside(name, seconds))
            save(options, record)
    finally:
        record["said"] = run.end()


def steady(options, record):
    words = [HERE / "gpu/rollouts.py", "cpu" if options.cpus else "cuda", "LOG", options.rollouts]
    run = Run(options, words, "rollouts")
    try:
        run.wait_phases(4, 200)
        for name, seconds in options.seconds.items():
            record["steady"].append(run.beside(name, seconds))
            save(options, record)
        record["starts"] = run.starts(next(reversed(options.seconds)), options.starts)
    finally:
        record["steady_said"] = run.end()


def long(options, record):
    run = reinforcement(options, options.long_rollout_s)
    try:
        run.wait_phases(2, 200)
        record["long"] = run.beside(next(iter(options.seconds)), 4 * options.long_rollout_s)
    finally:
        record["long_said"] = run.end()


def saving(options, record):
    words = ["-m", "freeride.run", HERE / "gpu/saving.py", "cpu" if options.cpus else "cuda", str(options.save_mib)]
    run = Run(options, words, "saving", {"FREERIDE_IDLE": "save", "FREERIDE_SAVE_FOLDER": options.save_folder})
    try:
        run.wait_phases(4, 200, "save")
        name = next(iter(options.seconds))
        record["saving"] = run.beside(name, options.save_seconds)
    finally:
        record["saving_said"] = run.end()


def handover(options):
    """Seconds in which the driver takes a whole process off its GPU and puts it back, several times."""
    words = [sys.executable, HERE / "gpu/checkpointed.py"]
    text = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    print(text.stdout[-500:], text.stderr[-1500:], flush=True)
    return json.loads(text.stdout.splitlines()[-1])


# ---- the figures


def harvested_share(bubbles, phase):
    """Of phases of open iterations, but for those that were under way when the side task came."""
    mine = [one for one in bubbles if one["phase"] == phase and not one["holdout"] and one["leased"]]
    length = sum(one["end_ns"] - one["begin_ns"] for one in mine)
    return (round(100 * sum(one["harvested_ns"] for one in mine) / length, 2) if length else None), len(mine)


def row_of(sample, phase):
    """One side task beside one training."""
    share, count = harvested_share(sample["bubbles"], phase)
    given_back = [one["overrun_ns"] / 1e6 for one in sample["bubbles"] if one["leased"] and one["phase"] == phase]
    row = {"side_task": sample["name"], "harvested_share_pct": share, "phases": count}
    row |= {f"give_back_p{q}_ms": round_or_none(analysis.quantile(given_back, q / 100)) for q in (50, 99)}
    found = updates_of(sample)
    if len(found) < 4:
        return row
    iteration_ms = mean_of([line["end_ns"] - line["begin_ns"] for line, _ in found]) / 1e6
    row |= {
        "iteration_ms": round(iteration_ms, 1),
        "update_ms": round(mean_of([update_ms(line) for line, _ in found]), 2),
    }
    return row | pairs_of(
        [update_ms(line) for line, _ in found], [bubble["leased"] for _, bubble in found], iteration_ms
    )


def updates_of(sample):
    """Each logged iteration with its rollout's bubble, as far as no side task came or went in it."""
    moved = {one["iteration"] for one in sample["iterations"] if one["transitions"]}
    found = []
    for line in sample.get("logged", []):
        for bubble in sample["bubbles"]:
            mine = bubble["phase"] == "rollout" and line["begin_ns"] <= bubble["begin_ns"] < line["rollout_end_ns"]
            if mine and bubble["iteration"] not in moved and bubble["leased"] != bubble["holdout"]:
                found.append((line, bubble))
    return found


def update_ms(line):
    return (line["end_ns"] - line["rollout_end_ns"]) / 1e6


def mean_of(values):
    return sum(values) / len(values)


def round_or_none(value):
    return None if value is None else round(value, 3)


def pairs_of(values, kinds, of):
    """By how much neighbouring blocks with `kinds` true are above those with false, in percent of `of`, with its 95 % interval."""
    blocks = []
    for value, kind in zip(values, kinds):
        if not blocks or blocks[-1][0] != kind:
            blocks.append((kind, []))
        blocks[-1][1].append(value)
    means = [(kind, mean_of(block)) for kind, block in blocks]
    pairs = [
        100 * (one[1] - other[1] if one[0] else other[1] - one[1]) / of for one, other in zip(means[::2], means[1::2])
    ]
    if len(pairs) < 2:
        return {}
    mean, half = analysis.interval(pairs)
    upper = {"time_increase_pct": round(mean, 3), "time_increase_ci95_upper_pct": round(mean + half, 3)}
    return {**upper, "pairs": len(pairs)}


def start_delay_ms(sample):
    """By how much updates after a rollout in which a side task started or stopped are longer than the others."""
    moved = {one["iteration"] for one in sample["iterations"] if one["transitions"]}
    kinds = {True: [], False: []}
    for line in sample.get("logged", []):
        for bubble in sample["bubbles"]:
            if bubble["phase"] == "rollout" and line["begin_ns"] <= bubble["begin_ns"] < line["rollout_end_ns"]:
                kinds[bubble["iteration"] in moved].append(update_ms(line))
    if not kinds[True] or not kinds[False]:
        return None
    return round(mean_of(kinds[True]) - mean_of(kinds[False]), 2)


def summarise(record):
    found = {"rows": [row_of(sample, "rollout") for sample in record["rl"]]}
    found["steady_rows"] = [row_of(sample, "rollout") for sample in record["steady"]]
    of_one = [
        row for row in found["rows"] + found["steady_rows"] if row["side_task"] == "spin"
    ]  # steps of a millisecond
    for key, rows, worst in (
        ("harvested_share_pct", found["rows"], min),
        ("time_increase_ci95_upper_pct", found["steady_rows"], max),
        ("give_back_p50_ms", of_one, max),
        ("give_back_p99_ms", of_one, max),
    ):
        values = [row[key] for row in rows if row.get(key) is not None]
        found[key] = worst(values) if values else None
    if "long" in record:
        found["long_row"] = row_of(record["long"], "rollout")
    if "starts" in record:
        found["start_delay_ms"] = start_delay_ms(record["starts"])
    if "saving" in record:
        found["saving_row"] = row_of(record["saving"], "save")
        found["save_harvested_share_pct"] = found["saving_row"]["harvested_share_pct"]
    if "handover" in record and found.get("give_back_p50_ms"):
        whole = record["handover"]
        found["handover_ratio"] = round(
            1e3 * (whole["off_s"] + whole["on_s"]) / max(found["give_back_p50_ms"], 1e-3), 1
        )
    return found


def save(options, record):
    try:
        summary = summarise(record)
    except Exception as error:  # the samples are worth more than it
        summary = {"summary_failed": f"{type(error).__name__}: {error}"}
    write_whole(options.out, json.dumps({**record, **summary}))
    return summary


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    tree_options(add)
    add("--cpus", action="store_true")
    add("--seconds", default="spin=120,resnet18=120", help="NAME=S,…: which side tasks, for how long")
    add("--rollout-s", type=float, default=3, help="a rollout takes at least so long")
    add("--long-rollout-s", type=float, default=15, help="and in a training of its own so long")
    add("--block-ms", type=int, default=8000, help="of baseline iterations")
    add("--rollouts", default="2,2.5,3", help="and where the GPU is never behind so long, in turn")
    add("--starts", type=int, default=5)
    add("--save-mib", type=int, default=2048)
    add("--save-seconds", type=float, default=60)
    add("--save-folder", default="/dev/shm")
    add("--parts", default="short,steady,saving,handover,long")
    add("--summary", metavar="FILE")
    options = parser.parse_args()
    if options.summary:
        print(json.dumps(summarise(json.loads(pathlib.Path(options.summary).read_text())), indent=1))
        return
    if not options.out or not (options.build or (options.bin and options.plugins and options.python)):
        parser.error("--out, and --build or --bin, --plugins and --python are needed")
    options.seconds = {one.partition("=")[0]: float(one.partition("=")[2]) for one in options.seconds.split(",") if one}
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "machine": [f"{os.cpu_count()} cores"] if options.cpus else machine(),
        "rl": [],
        "steady": [],
        "failures": [],
    }
    parts = {"short": short, "steady": steady, "long": long, "saving": saving}
    for part in options.parts.split(","):
        begin = time.monotonic()
        try:
            if part == "handover":
                record["handover"] = handover(options)
            else:
                parts[part](options, record)
        except Exception as error:
            print(f"FAILED: {part}: {type(error).__name__}: {error}", flush=True)
            record["failures"].append(f"{part}: {error}")
        print(f"-- {part}: {time.monotonic() - begin:.0f} s", flush=True)
        save(options, record)
    print(json.dumps(save(options, record), indent=1), flush=True)
    sys.exit(1 if record["failures"] else 0)


if __name__ == "__main__":
    main()
