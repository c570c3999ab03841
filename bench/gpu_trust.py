#!/usr/bin/env python3
"""Leases on a GPU without the plugins' word: what probes find of side tasks that cheat, how often they are wrong, and
what they cost. On one GPU, beside a replayed stage (bench/gpu/replay.py).

    bench/gpu_trust.py --bin DIR --plugins DIR --python DIR --out FILE --replay bench/results/marks-1f1b-h200.json
        [--stage 1] [--gpu 0] [--finds persistent,queued,thread,graph] [--probes resnet18=200,...] [--scale 0.4]

`finds`: each cheat of tests/plugins/gpu/gpu_cheat.cu, from its first lease until its first and its last verdict, in
bubbles. `probes`: honest side tasks, every bubble probed, for at least so many probes each: the findings among them are
false. `--scale` shortens the recorded waits for the latter, so that there are more of them."""

import argparse
import datetime
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "tests"), str(HERE / "gpu")]
import hook_gpu_harvest as harvest

from ranks import machine
from rig.processes import Failure, flags

# name: plugin, its memory, parameters, whether it needs this Python's torch
TASKS = {
    **harvest.TASKS,
    "resnet50": ("resnet50", "24GiB", ["batch=32"], True),
    "vgg19": ("vgg19", "24GiB", ["batch=32"], True),
    "sgd": ("sgd", "8GiB", ["vertices=3072441", "edges=117185083"], False),
    "image": ("image", "8GiB", ["synthetic=16384"], False),
    "none": ("gpu_cheat", "2GiB", ["how=none"], False),
}


ANEW = 40  # bubbles without a lease: the task was started anew meanwhile


class Trust(harvest.Run):
    """A run whose worker probes one bubble in `one_in`."""

    one_in = 32

    def start_workers(self, thread_pct):
        if self.workers:
            return
        self.workers = ["worker"]
        self.system.start_worker(
            self.devices()[0],
            *flags(state_dir=self.system.root / "s0", sandbox=self.options.sandbox, probe_one_in=self.one_in),
            *flags(host_memory_bytes=64 << 30, init_ms=90000, profile_ms=90000, log_level="debug"),
            name="worker",
            wait=False,
        )
        self.system.wait_workers(1, self.ranks is not None, 30)
        self.system.start(
            "bubbles",
            [self.system.tree.program("freeride-ctl"), *flags(format="json"), "events", *flags(topic="bubble.end")],
            stdout=True,
        )

    def probes(self):
        jobs = self.system.ok("report")["jobs"]
        names = ("probes", "probe_findings", "probes_unknown", "holdout_probes", "holdout_findings")
        return {name: jobs[0].get(name, 0) if jobs else 0 for name in names}

    def start_task(self, name, plugin, memory, params, python, *words):
        more = ["--python", sys.executable] if python else []
        self.system.load(
            self.options.plugins / f"{plugin}.so",
            name,
            "--stage",
            self.options.stage,
            "--memory",
            memory,
            *more,
            *words,
            params=params,
        )

    def bubbles(self):
        """Who had a lease in each bubble so far, in order; "" for nobody."""
        lines = (self.system.root / "bubbles.out").read_text().split("\n")[:-1]
        return [event["task"] if event["leased"] else "" for event in map(json.loads, lines)]

    def find(self, how):
        """Bubbles from a cheat's first lease until it goes, the first time and for good: it is given to another lease
        after the first time, by which its content is known."""
        before, at = self.probes(), len(self.bubbles())
        plugin = self.system.root / f"cheat-{how}.so"  # a content of its own: nothing is known of it yet
        plugin.write_bytes((self.options.plugins / "gpu_cheat.so").read_bytes() + how.encode())
        self.system.load(
            plugin,
            how,
            *flags(stage=self.options.stage, memory="2GiB"),
            params={"how": how, "after": self.options.after, "seconds": 10},
        )
        row, begin = {"how": how}, time.monotonic()
        try:
            verdict = self.system.wait_verdict(how, self.options.patience)
        except Failure as failure:
            verdict, row["failed"] = {}, str(failure)[:300]
        row["seconds"] = time.monotonic() - begin
        time.sleep(1)  # for the events
        leased = [index for index, task in enumerate(self.bubbles()[at:]) if task == how]
        # It is started anew in between, which takes many bubbles.
        cuts = [0, *(k for k in range(1, len(leased)) if leased[k] - leased[k - 1] > ANEW), len(leased)]
        stays = [leased[first:last] for first, last in zip(cuts, cuts[1:]) if first != last]
        row["bubbles"] = [stay[-1] - stay[0] + 1 for stay in stays]
        row["verdict"] = {key: verdict.get(key) for key in ("kind", "cause", "reason")}
        counters = self.system.task(how).get("counters", {})
        # Whether it came to cheat at all, and what kept it from steps where it did not.
        row["steps"], row["cheats"] = counters.get("steps"), counters.get("metrics", {}).get("cheats", 0)
        row["probes"] = {name: after - before[name] for name, after in self.probes().items()}
        if not verdict:
            row["log"] = [line for line in self.system.log("worker", 1 << 20).splitlines() if how in line][-20:]
            self.stop([how])
        return row

    def count_false(self, name, wanted):
        """Probes of an honest task until there are enough."""
        plugin, memory, params, python = TASKS[name]
        task = f"honest-{name}"
        self.start_task(task, plugin, memory, params, python)
        self.wait_steps([task], 120)
        before, steps, at = self.probes(), self.system.steps(task), time.monotonic()
        self.wait(
            f"{wanted} probes of {name}",
            lambda: self.probes()["probes"] - before["probes"] >= wanted,
            self.options.patience,
        )
        made = {key: after - before[key] for key, after in self.probes().items()}
        row = {
            "side_task": " ".join([plugin, *params]),
            "seconds": time.monotonic() - at,
            "steps": self.system.steps(task) - steps,
            **made,
            "verdict": self.system.task(task).get("verdict", {}),
        }
        self.stop([task])
        return row


def scaled(options):
    """The recording with shorter waits."""
    recorded = json.loads(pathlib.Path(options.replay).read_text())
    recorded["stages"] = [
        [[None if one is None else one * options.scale for one in iteration] for iteration in stage]
        for stage in recorded["stages"]
    ]
    path = pathlib.Path(options.out + ".marks.json")
    path.write_text(json.dumps(recorded))
    return str(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--bin", "--plugins", "--python"):
        parser.add_argument(name, type=lambda text: pathlib.Path(text).resolve(), required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--replay", metavar="FILE", required=True)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--finds", default="persistent,queued,thread,graph")
    parser.add_argument("--probes", default="", help="NAME=PROBES,...")
    parser.add_argument("--after", type=int, default=200, help="honest steps of a cheat; more than a profile makes")
    parser.add_argument("--scale", type=float, default=0.4)
    parser.add_argument("--patience", type=float, default=90, help="seconds for each")
    parser.add_argument("--watchdog", type=int, default=560)
    parser.add_argument("--small", action="store_true", help="a small model")
    options = parser.parse_args()
    sys.path.append(str(options.python))
    options.ranks, options.synchronise, options.parts, options.blocks, options.iterations = 1, False, False, 1, 4
    options.warm_up, options.baseline_pct, options.block_ms = 10, 10, 1000
    options.budget_pct = 100
    probes = {one.partition("=")[0]: int(one.partition("=")[2]) for one in options.probes.split(",") if one}
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "machine": machine()[options.gpu : options.gpu + 1],
        "finds": [],
        "false": [],
        "failures": [],
    }

    def keep(kind, row):
        record[kind].append(row)
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps(row), flush=True)

    unscaled = options.replay
    for kind, names, one_in, replay in (
        ("finds", [one for one in options.finds.split(",") if one], 32, unscaled),
        ("false", list(probes), 1, scaled(options)),
    ):
        if not names:
            continue
        options.replay = replay
        run = Trust(options)
        run.one_in = one_in
        try:
            run.up()
            run.ready()
            for name in names:
                try:
                    keep(kind, run.find(name) if kind == "finds" else run.count_false(name, probes[name]))
                except Exception as error:
                    run.failed(name, error)
                    record["failures"].append(f"{name}: {error}")
            run.end_training()
        except Exception as error:
            run.failed("the run", error)
            record["failures"].append(str(error))
        finally:
            run.down()
    counts = [row["probes"] for row in record["false"]]
    record["probe_count"], record["probe_false_findings"] = (
        sum(counts),
        sum(row["probe_findings"] for row in record["false"]),
    )
    record["probe_false_accusations"] = sum(bool(row["verdict"].get("kind")) for row in record["false"])
    pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({key: value for key, value in record.items() if key.startswith("probe")}), flush=True)


if __name__ == "__main__":
    main()
