#!/usr/bin/env python3
"""Measures what the tables need and writes it, samples and all, into one JSON file; page.py makes tables and pictures of it.

    bench/tables/run.py --scale toy --build build/dev --python build/frameworks-venv/bin/python --out build/tables/tables.json
    bench/tables/run.py --scale gpu --programs DIR/bin --plugins DIR/plugins --hooks DIR/python --out tables.json      # DIR: make dist's folder

Each cell is one training of its own, in which blocks with and without side tasks take turns, so that every figure is paired. The file is written
after each cell; --resume goes on with one that was stopped. Exit code 1: some cell could not be measured (the others are kept).
"""
import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

import cells
import rows
from system import Failure, System

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=sorted(cells.SCALES), required=True)
    parser.add_argument("--build", type=pathlib.Path, help="build folder; or each of the next three")
    parser.add_argument("--programs", type=pathlib.Path, help="folder of freeride-* and bench-side-task")
    parser.add_argument("--plugins", type=pathlib.Path)
    parser.add_argument("--hooks", type=pathlib.Path, default=SOURCE / "hooks/python", help="folder of the Python package freeride")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the training: PyTorch 2.6 or later")
    parser.add_argument("--stages", type=int, help="default: one for each GPU, at most 4; on CPUs 2")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", action="append", help="cells whose name contains this")
    parser.add_argument("--seconds", type=float, help="of each run, instead of the scale's")
    parser.add_argument("--sandbox", default="bubblewrap", choices=["bubblewrap", "none"])
    parser.add_argument("--resume", action="store_true", help="keep what --out has already")
    options = parser.parse_args()
    if options.build:
        options.programs, options.plugins = options.programs or options.build / "bin", options.plugins or options.build / "plugins"
    if not options.programs or not options.plugins:
        parser.error("--build, or --programs and --plugins")
    options.programs, options.plugins, options.hooks = options.programs.resolve(), options.plugins.resolve(), options.hooks.resolve()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    return options


def gpus():
    try:
        words = ["nvidia-smi", "--query-gpu=uuid,name,driver_version", "--format=csv,noheader"]
        return [line.split(", ") for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip().splitlines()]
    except (OSError, subprocess.CalledProcessError):
        return []


class Machine:
    def __init__(self, options):
        found = gpus() if options.scale == "gpu" else []
        if options.scale == "gpu" and not found:
            raise Failure("nvidia-smi lists no GPU; --scale toy runs without one")
        stages = options.stages or (min(4, len(found)) if found else 2)
        self.cores = sorted(os.sched_getaffinity(0))
        self.devices = [gpu[0] for gpu in found[:stages]] if found else [f"cpu-{stage}" for stage in range(stages)]
        self.about = {"machine": f"{len(self.devices)} x {found[0][1]}" if found else f"{len(self.cores)} cores, no GPU", "stages": stages,
                      "driver": found[0][2] if found else None}


def bubble_breakdown(events):
    """By stage: where the bubbles' time went. `events`: bubble.end of iterations that were not held out."""
    stages = {}
    for event in events:
        stage = stages.setdefault(str(event["stage"]), {"bubbles": 0, "offered_ns": 0, "running_ns": 0, "until_first_step_ns": 0, "after_last_step_ns": 0,
                                                        "between_steps_ns": 0, "no_step_fitted_ns": 0, "not_leased_ns": 0, "not_learned_ns": 0,
                                                        "lengths_us": [], "overruns_us": [], "edge_to_step_us": []})
        length = event["end_ns"] - event["begin_ns"]
        stage["bubbles"] += 1
        stage["offered_ns"] += length
        stage["lengths_us"].append(length // 1000)
        if not event["leased"]:
            stage["not_leased_ns" if event["learned_ns"] else "not_learned_ns"] += length
            continue
        stage["overruns_us"].append(event["overrun_ns"] // 1000)
        if not event["side_begin_ns"]:
            stage["no_step_fitted_ns"] += length
            continue
        head = min(length, max(0, event["side_begin_ns"] - event["begin_ns"]))
        tail = max(0, event["end_ns"] - event["side_end_ns"])
        running = min(event["harvested_ns"], length)
        stage["edge_to_step_us"].append(head // 1000)
        stage["running_ns"] += running
        stage["until_first_step_ns"] += head
        stage["after_last_step_ns"] += tail
        stage["between_steps_ns"] += max(0, length - running - head - tail)
    for stage in stages.values():
        for key in ("lengths_us", "overruns_us", "edge_to_step_us"):
            values = sorted(stage.pop(key))
            stage[key.replace("_us", "_quantiles_us")] = [values[min(len(values) - 1, int(q * len(values)))] for q in (0.05, 0.5, 0.95, 0.99)] if values else []
    return stages


class Tables:
    def __init__(self, options):
        self.options, self.scale, self.machine, self.price = options, cells.SCALES[options.scale](), Machine(options), rows.prices()
        self.flags = ["--sandbox", options.sandbox]
        stages = len(self.machine.devices)
        self.record = {"scale": options.scale, **self.machine.about, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
                       "command": " ".join(["bench/tables/run.py", *sys.argv[1:]]), "commit": self.commit(), "versions": self.versions(),
                       "low_tier": self.scale.low_tier, "size": dict(self.scale.size, layers=self.layers(stages)), "alone": {}, "runs": [], "failed": {}}
        if options.resume and options.out.exists():
            old = json.loads(options.out.read_text())
            self.record["alone"], self.record["runs"] = old["alone"], old["runs"]

    def layers(self, stages):
        return self.scale.size["layers"] * stages  # the scale says how many a stage has

    @staticmethod
    def commit():
        done = subprocess.run(["git", "-C", SOURCE, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
        return done.stdout.strip() or None

    def versions(self):
        code = "import torch; print(torch.__version__, torch.version.cuda, '.'.join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None)"
        try:
            done = subprocess.run([self.options.python, "-c", code], capture_output=True, text=True, check=False)
            why = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        except OSError as error:
            done, why = None, str(error)
        if done is None or done.returncode:
            raise Failure(f"{self.options.python} can't import torch: {why}; name another with --python")
        torch, cuda, nccl = done.stdout.split()
        return {"torch": torch, "cuda": cuda, "nccl": nccl, "kernel": platform.release()}

    def system(self):
        return System(self.options.programs, self.options.plugins, self.options.hooks, self.machine.devices)

    def side_tasks(self, cell):
        """One for each stage."""
        stages = range(len(self.machine.devices))
        return [self.scale.mixed[stage % len(self.scale.mixed)] if cell.side_task == "mixed" else cell.side_task for stage in stages]

    def cores_of(self, stage):
        return str(self.machine.cores[stage % len(self.machine.cores)])

    def save(self):
        self.record["rows"] = rows.rows(self.record, self.price)
        self.options.out.write_text(json.dumps(self.record) + "\n")

    # ---- one side task with the device to itself ----
    def alone(self, side_task):
        with self.system() as system:
            lines = system.start_plain("plain", side_task, self.machine.devices[0], self.scale.params.get(side_task, []), self.cores_of(0), {})
            self.go_on(system, "plain", lines)
            time.sleep(min(5, self.scale.seconds / 3))
            return self.end_plain(system, "plain", lines, side_task)

    def go_on(self, system, name, lines):
        """Through CreateSideTask and InitSideTask, to the steps."""
        process = system.processes[name]
        for state in ("CREATED", "PAUSED"):
            system.wait(lambda state=state: any(line.get("state") == state for line in lines.lines), f"{state} of {name}")
            process.stdin.write("\n")
            process.stdin.flush()

    def end_plain(self, system, name, lines, side_task):
        """(work in the metric's unit, seconds of steps) of a plain side task, which it ends."""
        process = system.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        process.stdin.close()  # nothing holds it any more
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"plain {side_task} did not end within 60 s of SIGTERM") from None
        lines.join()
        if process.returncode or "metrics" not in lines.lines[-1]:
            raise Failure(f"plain {side_task} ended with {process.returncode}: {system.error(name)}")
        last = lines.lines[-1]
        return self.work(side_task, last["steps"], last["metrics"]), last["work_ms"] / 1e3

    def work(self, side_task, steps, metrics):
        metric = self.price["side_task"][side_task]["metric"]
        if metric != "steps" and metric not in metrics:
            raise Failure(f"{side_task} has no metric '{metric}', which prices.toml counts its work by; it has: {', '.join(metrics) or 'none'}")
        return steps if metric == "steps" else metrics[metric]

    # ---- one cell ----
    def job(self, cell):
        stages = len(self.machine.devices)
        per_rank = 1 if cell.schedule in ("1F1B", "GPipe") else 2
        return {"schedule": cell.schedule, "size": dict(self.record["size"], micro_batches=cell.micro_batches, stages=stages * per_rank),
                "warm_up": self.scale.warm_up, "cores": self.machine.cores}

    def run(self, cell):
        with self.system() as system:
            measured = self.with_freeride(system, cell) if cell.method in ("iterative", "imperative") else self.without_freeride(system, cell)
        if not measured["samples"]:
            raise Failure("training has said nothing of its iterations")
        return {"cell": dataclasses.asdict(cell), **measured}

    def block_ms(self, system, training):
        """How long blocks with and without side tasks are, once training has warmed up."""
        system.wait(lambda: training.lines, "warm-up of the training")
        return self.scale.block_iterations * training.lines[0]["ready"]

    def train_on(self, system, training, block=lambda: time.sleep(0.2)):
        """Lets training run for the cell's time, block() by block(), then tells it to end."""
        end = time.monotonic() + (self.options.seconds or self.scale.seconds)
        while time.monotonic() < end:
            if not system.ranks_left():
                raise Failure("training ended by itself")
            block()
        system.end_training(training)

    def with_freeride(self, system, cell):
        training = system.start_training(self.job(cell), self.options.python, True, {})
        events = system.start_freeride(round(self.block_ms(system, training)), cell.budget_pct, self.machine.cores, self.flags)
        names = []
        for stage, side_task in enumerate(self.side_tasks(cell)):
            system.load(f"{side_task}-{stage}", stage, side_task, cell.method, self.scale.params.get(side_task, []), [])
            names.append((f"{side_task}-{stage}", stage, side_task))
        system.wait(lambda: all(system.works(name) for name, _, _ in names), "the first step of every side task")
        from_ns = time.monotonic_ns()
        self.train_on(system, training)
        while system.ranks_left():
            time.sleep(0.05)
        time.sleep(1)  # the last events are on their way
        states = {name: system.task(name) for name, _, _ in names}
        for name, state in states.items():
            if state["verdict"]["kind"] not in ("", "stopped"):
                raise Failure(f"side task {name} was {state['verdict']['kind']}: {state['verdict']['reason']}")
        system.processes["events"].terminate()
        events.join()
        kinds = {}
        for event in events.lines:
            if event.get("topic", "").startswith("training.iteration/") and event["begin_ns"] >= from_ns:
                kinds.setdefault(event["iteration"], []).append(event)
        samples = []
        for line in training.lines:
            if "iteration" in line:
                said = kinds.get(line["iteration"], [])
                kind = None
                if said and all(event["holdout"] for event in said):
                    kind = False
                elif said and not any(event["holdout"] for event in said) and any(event["harvested"] for event in said):
                    kind = True
                if samples or kind is not None:
                    samples.append([line["ms"], kind])
        bubbles = [event for event in events.lines if event.get("topic", "").startswith("bubble.end/") and event["begin_ns"] >= from_ns]
        breakdown = bubble_breakdown([event for event in bubbles if not event["holdout"]])
        ends = [line["end_ns"] for line in training.lines if "iteration" in line]
        for stage in breakdown:
            of_stage = sum(event["end_ns"] - event["begin_ns"] for event in bubbles if str(event["stage"]) == stage)
            breakdown[stage]["share_pct"] = round(100 * of_stage / (max(ends) - from_ns), 3)
        with_s = sum(ms for ms, kind in samples if kind) / 1e3
        tasks = []
        for name, stage, side_task in names:
            counters = states[name]["counters"]
            # Counters are some time old; work for each second of steps is not.
            per_ns = self.work(side_task, counters["steps"], counters["metrics"]) / max(1, counters["harvested_ns"])
            tasks.append({"side_task": side_task, "stage": stage, "work": per_ns * breakdown.get(str(stage), {}).get("running_ns", 0), "seconds": with_s})
        return {"samples": cut(samples), "tasks": tasks, "bubbles": breakdown, "measures": system.ctl("status").get("jobs")}

    def without_freeride(self, system, cell):
        """The same training unhooked, and the side tasks' own programs beside it, stopped and continued by turns."""
        trainer, beside = self.mps(system) if cell.method == "mps" else ({}, {})
        training = system.start_training(self.job(cell), self.options.python, False, trainer)
        block_s = self.block_ms(system, training) / 1e3
        plain = []
        for stage, side_task in enumerate(self.side_tasks(cell)):
            name = f"plain-{stage}"
            lines = system.start_plain(name, side_task, self.machine.devices[stage], self.scale.params.get(side_task, []), self.cores_of(stage), beside)
            plain.append((name, stage, side_task, lines))
        for name, _, _, lines in plain:
            self.go_on(system, name, lines)
        windows = []  # (from, to, with side tasks)

        def block(on):
            begin = time.monotonic_ns()
            for name, *_ in plain:
                system.processes[name].send_signal(signal.SIGCONT if on else signal.SIGSTOP)
            time.sleep(block_s)
            windows.append((begin, time.monotonic_ns(), on))

        self.train_on(system, training, lambda: block(len(windows) % 2 == 0))
        for name, *_ in plain:
            system.processes[name].send_signal(signal.SIGSTOP)
        while system.ranks_left():
            time.sleep(0.05)
        samples = []
        for line in training.lines:
            if "iteration" in line:
                end = line["end_ns"]
                begin = end - int(line["ms"] * 1e6)
                kind = next((on for since, until, on in windows if since <= begin and end <= until), None)
                if samples or kind is not None:
                    samples.append([line["ms"], kind])
        seconds = sum(until - since for since, until, on in windows if on) / 1e9
        tasks = [{"side_task": side_task, "stage": stage, "work": self.end_plain(system, name, lines, side_task)[0], "seconds": seconds}
                 for name, stage, side_task, lines in plain]
        return {"samples": cut(samples), "tasks": tasks, "bubbles": {}}

    def mps(self, system):
        """One MPS server for both, the trainer at the higher priority: environments of the trainer and of the side tasks."""
        if self.options.scale != "gpu":
            raise Failure("MPS needs GPUs")
        folder = {"CUDA_MPS_PIPE_DIRECTORY": str(system.folder / "p"), "CUDA_MPS_LOG_DIRECTORY": str(system.folder / "l")}
        for path in folder.values():
            pathlib.Path(path).mkdir()
        system.start("mps", ["nvidia-cuda-mps-control", "-f"], env=folder)
        return dict(folder, CUDA_MPS_CLIENT_PRIORITY="0"), dict(folder, CUDA_MPS_CLIENT_PRIORITY="1")

    # ---- all ----
    def measure(self):
        wanted = [cell for cell in self.scale.cells if not self.options.only or any(part in cell.name for part in self.options.only)]
        done = {json.dumps(run["cell"]) for run in self.record["runs"]}
        steps = [(f"alone-{name}", name) for name in sorted({name for cell in wanted for name in self.side_tasks(cell)}) if name not in self.record["alone"]]
        steps += [(cell.name, cell) for cell in wanted if json.dumps(dataclasses.asdict(cell)) not in done]
        for index, (name, what) in enumerate(steps):
            begin = time.monotonic()
            try:
                if isinstance(what, str):
                    self.record["alone"][what] = self.alone(what)
                else:
                    self.record["runs"].append(self.run(what))
                said = "measured"
            except Failure as failure:
                self.record["failed"][name] = str(failure)
                said = f"FAILED: {failure}"
            if not isinstance(what, str) or self.record["runs"]:
                self.save()
            print(f"[{index + 1}/{len(steps)}] {name}: {said} ({time.monotonic() - begin:.0f} s)", flush=True)


def cut(samples):
    """Without what comes after the last sample of a known kind."""
    while samples and samples[-1][1] is None:
        samples.pop()
    return samples


def main():
    options = parse()
    try:
        tables = Tables(options)
        tables.measure()
    except Failure as failure:
        sys.exit(f"tables: {failure}")
    tables.save()
    return 1 if tables.record["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
