#!/usr/bin/env python3
"""Measures what the tables need and writes it, samples and all, into one JSON file; page.py makes tables and pictures
of it.

    bench/tables/run.py --scale toy --build build/dev --python build/frameworks-venv/bin/python --out build/tables/tables.json
    bench/tables/run.py --scale gpu --programs DIR/bin --plugins DIR/plugins --hooks DIR/python --out tables.json      # DIR: make dist's folder

Cells share trainings: one under the hook for all of FreeRide's, one for naive co-location, one under MPS; in each cell,
blocks with and without side tasks take turns, so that every figure is paired. The file is written after each cell;
--resume goes on with one that was stopped, --limit-s stops by itself. Exit code 1: some cell could not be measured (the
others are kept)."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(SOURCE / "tests"))
import cells
import power
import rows
from beside import Beside
from harvest import Harvest
from rig.gpus import gpus
from rig.processes import Failure, Lines, write_whole
from rig.system import System
from rig.tree import Tree, folder


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=sorted(cells.SCALES), required=True)
    parser.add_argument("--build", type=folder, help="build folder; or each of the next three")
    parser.add_argument("--programs", type=folder, help="folder of freeride-* and bench-side-task")
    parser.add_argument("--plugins", type=folder)
    parser.add_argument(
        "--hooks", type=folder, default=SOURCE / "hooks/python", help="folder of the Python package freeride"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter of the training: PyTorch 2.6 or later")
    parser.add_argument("--stages", type=int, help="default: one for each GPU, at most 4; on CPUs 2")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", action="append", help="cells in whose name this regular expression is found")
    parser.add_argument("--seconds", type=float, help="of each cell, instead of the scale's")
    parser.add_argument(
        "--limit-s", type=float, default=float("inf"), help="begin no cell later than so many seconds after the start"
    )
    parser.add_argument("--commit", help="what is measured, where no Git knows it")
    parser.add_argument("--sandbox", default="bubblewrap", choices=["bubblewrap", "none"])
    parser.add_argument(
        "--resume", action="store_true", help="keep what --out has already, and measure the other cells"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="with --resume: measure those that it has, too; the new ones take their place",
    )
    options = parser.parse_args()
    if options.build:
        options.programs = options.programs or options.build / "bin"
        options.plugins = options.plugins or options.build / "plugins"
    if not options.programs or not options.plugins:
        parser.error("--build, or --programs and --plugins")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    return options


class Machine:
    def __init__(self, options):
        found = gpus() if options.scale == "gpu" else []
        if options.scale == "gpu" and not found:
            raise Failure("nvidia-smi lists no GPU; --scale toy runs without one")
        stages = options.stages or (min(4, len(found)) if found else 2)
        self.cores = sorted(os.sched_getaffinity(0))
        self.gpus = [gpu.uuid for gpu in found[:stages]]
        self.devices = self.gpus or [f"cpu-{stage}" for stage in range(stages)]
        self.about = {
            "machine": f"{len(self.devices)} x {found[0].name}" if found else f"{len(self.cores)} cores, no GPU",
            "stages": stages,
            "driver": found[0].driver if found else None,
        }

    def core_of(self, stage):
        return str(self.cores[stage % len(self.cores)])


class Tables:
    def __init__(self, options):
        self.options, self.scale, self.machine, self.price = (
            options,
            cells.SCALES[options.scale](),
            Machine(options),
            rows.prices(),
        )
        self.begin, self.reserved_s = time.monotonic(), 0.0
        self.power = None
        self.commit = options.commit or self.described()
        stages = len(self.machine.devices)
        self.record = {
            "scale": options.scale,
            **self.machine.about,
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": " ".join(["bench/tables/run.py", *sys.argv[1:]]),
            "commit": self.commit,
            "versions": self.versions(),
            "low_tier": self.scale.low_tier,
            "sizes": {name: dict(size, layers=size["layers"] * stages) for name, size in self.scale.sizes.items()},
            "alone": {},
            "runs": [],
            "failed": {},
        }
        if options.resume and options.out.exists():
            old = json.loads(options.out.read_text())
            for key in ("alone", "runs"):
                self.record[key] = old[key]
            self.record["failed"] = {
                name: why for name, why in old["failed"].items() if any(cell.name == name for cell in self.scale.cells)
            }
            self.record["command"] = f"{old['command']}; then {self.record['command']}"

    # ---- what is run
    @staticmethod
    def described():
        done = subprocess.run(
            ["git", "-C", SOURCE, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() or None

    def versions(self):
        code = "import torch; print(torch.__version__, torch.version.cuda, '.'.join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None, torch.__path__[0])"
        try:
            done = subprocess.run([self.options.python, "-c", code], capture_output=True, text=True, check=False)
            why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        except OSError as error:
            done, why = None, str(error)
        if done is None or done.returncode:
            raise Failure(f"{self.options.python} can't import torch: {why}; name another with --python")
        torch, cuda, nccl, self.torch_folder = done.stdout.split()
        return {"torch": torch, "cuda": cuda, "nccl": nccl, "kernel": platform.release()}

    def torch_lib(self):
        return str(pathlib.Path(self.torch_folder) / "lib")

    def system(self):
        tree = Tree(self.options.programs, self.options.plugins, self.options.hooks)
        tree.hook_library()  # without one a hooked training would say nothing and have no hook
        return System(tree, "tables", outside_tmp=True, env={"NCCL_NVLS_ENABLE": "0"})

    def side_tasks(self, cell, stage):
        return (
            [self.scale.mixed[stage % len(self.scale.mixed)]]
            if cell.side_task == "mixed"
            else cell.side_task.split("+")
        )

    def params(self, side_task, batch):
        own = self.scale.params.get(side_task, [])
        return [word for word in own if not word.startswith("batch=")] + [f"batch={batch}"] if batch else own

    def job(self, cell):
        stages = len(self.machine.devices)
        per_rank = 1 if cell.schedule in ("1F1B", "GPipe") else 2
        return {
            "schedule": cell.schedule,
            "size": dict(self.record["sizes"][cell.size], micro_batches=cell.micro_batches, stages=stages * per_rank),
            "warm_up": self.scale.warm_up,
        }

    # ---- work
    def metric(self, side_task):
        return self.price["side_task"][side_task]["metric"]

    def in_units(self, side_task, batch, amount):
        """In what prices.toml counts: its steps are those of 64 images."""
        return amount * batch / 64 if batch and side_task in cells.TRAIN else amount

    def work(self, side_task, batch, steps, metrics):
        metric = self.metric(side_task)
        if metric != "steps" and not metrics:
            return 0.0  # has finished nothing yet
        if metric != "steps" and metric not in metrics:
            raise Failure(
                f"{side_task} has no metric '{metric}', which prices.toml counts its work by; it has: {', '.join(metrics) or 'none'}"
            )
        return self.in_units(side_task, batch, steps if metric == "steps" else metrics[metric])

    # ---- iterations, energy
    def samples(self, lines, kind_of):
        """[ms, with side tasks, [J, SM MHz, share at the power cap] of each GPU] of each iteration, from the first
        known kind to the last."""
        read = list(self.power.lines) if self.power else []
        found = []
        for line in lines:
            end = line["end_ns"]
            seen = (
                [power.between(read, end - line["ms"] * 1e6, end, gpu) for gpu in range(len(self.machine.gpus))]
                if read
                else []
            )
            read = read[next((at for at, one in enumerate(read) if one["at_ns"] > end - 2e9), 0) :]
            found.append(
                [line["ms"], kind_of(line)]
                + ([[[round(value, 2) for value in one] for one in seen]] if seen and all(seen) else [])
            )
        known = [at for at, sample in enumerate(found) if sample[1] is not None]
        return found[known[0] : known[-1] + 1] if known else []

    def energy(self, gpu, from_ns, to_ns):
        time.sleep(2.5 * power.PERIOD_S)
        found = power.between(list(self.power.lines), from_ns, to_ns, gpu) if self.power else None
        return round(found[0], 2) if found else None

    # ---- time
    def late(self):
        return time.monotonic() - self.begin > self.options.limit_s - self.reserved_s

    def say(self, text):
        print(f"[{time.monotonic() - self.begin:.0f} s] {text}", flush=True)

    # ---- all
    def save(self):
        write_whole(self.options.out, json.dumps(self.record) + "\n")

    def done(self, cell, result):
        if isinstance(result, Failure):
            self.record["failed"][cell.name] = str(result)
            return self.say(f"{cell.name} FAILED: {result}")
        self.record["failed"].pop(cell.name, None)
        run = {"cell": cell.key, "commit": self.commit, "power": rows.power(result["samples"]), **result}
        for part in (run, run.get("ramp", run)):
            part["samples"] = [sample[:2] for sample in part["samples"]]
        self.record["runs"] = [one for one in self.record["runs"] if one["cell"] != cell.key] + [run]
        self.save()
        row = rows.row(run, self.record, self.price)
        harvested = "" if row["harvested_share_pct"] is None else f", harvested {row['harvested_share_pct']:.1f} %"
        self.say(
            f"{cell.name}: I {row['time_increase_pct']} {row['time_increase_ci95_pct']} %, S {row['cost_savings_pct']} of {row['most_savings_pct']} %{harvested}"
            f", duty {row['duty_pct']} %, {row['iterations']} iterations"
        )

    def alone(self, side_task, batch, work, seconds, stage, began_ns):
        key = side_task + (f"@{batch}" if batch else "")
        joules = self.energy(stage, began_ns, began_ns + int(seconds * 1e9)) if self.machine.gpus else None
        self.record["alone"][key] = [work, seconds] + ([joules] if joules else [])
        self.say(f"{key} alone: {work / seconds:.4g} a second")

    def wanted(self, method):
        done = [] if self.options.again else [run["cell"] for run in self.record["runs"]]
        return [
            cell
            for cell in self.scale.cells
            if (cell.method == method or method == "freeride" and cell.method in ("iterative", "imperative"))
            and cell.key not in done
            and (not self.options.only or any(re.search(part, cell.name) for part in self.options.only))
        ]

    def plan(self):
        """The groups of cells that share a training, in order."""
        groups = []
        for method in ("naive", "freeride", "mps"):  # the first also tells the rates alone
            wanted = self.wanted(method)
            if wanted:
                groups.append(Harvest(self, wanted) if method == "freeride" else Beside(self, wanted, method))
        return groups

    def worth(self, cell):
        """What a second of the cell's side tasks is worth, in seconds of a training GPU, by prices.toml and the rates
        alone."""
        found = []
        for stage in range(len(self.machine.devices)):
            for side_task in self.side_tasks(cell, stage):
                work, seconds, *_ = self.record["alone"].get(
                    side_task + (f"@{cell.batch}" if cell.batch and side_task in cells.TRAIN else "")
                ) or (0, 1)
                alone = rows.units_per_s(side_task, work, seconds, self.price)
                low_tier = alone if self.scale.low_tier == "alone" else self.price["side_task"][side_task]["low_tier"]
                if not alone:
                    raise Failure(f"what {side_task} is worth is not known, since its rate alone is not")
                found.append(
                    alone
                    / low_tier
                    * self.price["low_tier"]["dollars_per_hour"]
                    * len(self.machine.devices)
                    / self.price["training"]["dollars_per_hour"]
                )
        return sum(found) / len(found)

    def needs_s(self, group):
        """About how long a group takes, so that time is left for those that come later."""
        return sum((self.options.seconds or cell.seconds or self.scale.seconds) + 1 for cell in group.cells) + 30

    def measure(self):
        if self.machine.gpus:
            self.power_system = self.system()
            process = self.power_system.start(
                "power",
                [sys.executable, pathlib.Path(power.__file__), *self.machine.gpus],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.power = Lines(process.stdout)
        groups = self.plan()
        try:
            for group in groups:
                try:
                    group.prepare()
                except Failure as failure:
                    self.failed(group, failure)
            for group in groups:
                if isinstance(group, Harvest):
                    group.wait_profiles()  # devices are nobody's yet
            self.say("processes are ready")
            for at, group in enumerate(groups):
                if group.cells[0].name in self.record["failed"]:
                    continue
                self.reserved_s = sum(self.needs_s(later) for later in groups[at + 1 :])
                try:
                    self.run(group)
                except Failure as failure:
                    self.failed(group, failure)
                finally:
                    group.close()
        finally:
            for group in groups:
                group.close()
            if self.machine.gpus:
                self.power_system.close()

    def run(self, group):
        if isinstance(group, Beside):
            group.init()
            self.say("side tasks' own programs are initialised")
            if group.method == "naive":
                group.alone(min(2.5, self.scale.seconds / 3), self.alone)
        group.go()
        group.measure(self.done)

    def failed(self, group, failure):
        done = [run["cell"] for run in self.record["runs"]]
        for cell in group.cells:
            if cell.key not in done:
                self.record["failed"][cell.name] = str(failure)
        self.say(f"FAILED: {failure}")


def main():
    options = parse()
    try:
        tables = Tables(options)
        tables.measure()
    except Failure as failure:
        sys.exit(f"tables: {failure}")
    tables.save()
    return 1 if {cell.name for cell in tables.scale.cells} & tables.record["failed"].keys() else 0


if __name__ == "__main__":
    sys.exit(main())
