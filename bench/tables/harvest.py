"""Cells of FreeRide: one training under the hook, in whose bubbles the cells' side tasks take turns.

What a group of cells needs is loaded at once and paused by the user; a cell is then two orders, and training does not
notice. The manager's holdout gives and takes blocks of iterations, so that each cell has its own blank ones."""

import contextlib
import sqlite3
import subprocess
import time

import breakdown
from cells import TRAIN
from rig.processes import Failure, Lines, flags
from training import Training


class Harvest:
    def __init__(self, tables, cells):
        self.tables, self.scale, self.machine, self.options = tables, tables.scale, tables.machine, tables.options
        self.cells, self.system = cells, tables.system()
        self.training = Training(
            self.system, self.options.python, True, len(self.machine.devices), self.machine.cores, {}
        )
        self.loaded = {}  # task's name -> (stage, side task, batch, interface)
        self.budget = None  # the manager's
        self.block_ms = self.manager_block_ms = 1000
        self.iteration_ms = 0
        self.events = None

    def close(self):
        self.system.close()

    # ---- daemons
    def prepare(self):
        """Everything that needs no training: daemons, profiles (devices are idle still), imports."""
        self.start_manager(None)
        more = ["--host-memory-bytes", 32 << 30, "--init-ms", 90000, "--profile-ms", 30000] if self.machine.gpus else []
        for stage, device in enumerate(self.machine.devices):
            self.system.start_worker(
                device,
                *flags(state_dir=self.system.root / f"w{stage}", sandbox=self.options.sandbox, lease_order="best-fit"),
                *more,
                cores=self.machine.core_of(stage),
                wait=False,
            )
        self.system.wait_workers(len(self.machine.devices))
        words = [self.options.programs / "freeride-ctl", "--format", "json", "events"]
        self.events = Lines(self.system.start("events", words, stdout=subprocess.PIPE, text=True).stdout)
        self.training.prepare(self.tables.job(self.cells[0]))
        # All that will be profiled is loaded once while the devices are nobody's; for a stage, which no trainer has
        # yet, so that it waits.
        first, *later = self.groups()
        wanted = self.names(first)
        known = {tuple(rest[1:]) for rest in wanted.values()}
        for name, rest in self.names([cell for group in later for cell in group]).items():
            if tuple(rest[1:]) not in known:
                known.add(tuple(rest[1:]))
                wanted[name] = rest
        self.load(wanted)

    def start_manager(self, budget, worth=1.0):
        self.budget, self.manager_block_ms = budget, self.block_ms
        # Without a budget they pay, whatever they cost: else the manager takes them off duty while they are loaded, which
        # costs more than it harvests.
        more = {"side_worth": round(worth, 4) if budget == "auto" else 1000 if budget is None else 1}
        self.system.start_manager(
            *flags(baseline_pct=50, baseline_block_ms=round(self.block_ms), default_memory_mib=self.scale.memory_mib),
            *flags(budget_pct=100 if budget is None else budget, **more),
        )

    def set_budget(self, cell):
        """A manager with the cell's budget. One that has it already goes on: it judges other side tasks by what they
        do. `auto` needs to know what the cell's are worth."""
        budget, same_length = cell.budget_pct, 0.8 < self.block_ms / self.manager_block_ms < 1.25
        if budget == self.budget and budget != "auto" and same_length:
            return
        worth = self.tables.worth(cell) if budget == "auto" else 1.0
        self.pause(self.loaded)
        self.system.end("manager")
        with contextlib.closing(sqlite3.connect(self.system.state_dir / "freeride.db", isolation_level=None)) as state:
            for table in ("block", "job", "holdout_plan", "stage"):
                state.execute(f"DELETE FROM {table}")
        self.start_manager(budget, worth)
        self.system.wait_workers(len(self.machine.devices))

    # ---- side tasks
    def tasks_of(self, cell):
        """(name, stage, side task, batch, interface) of each."""
        found = []
        for stage in range(len(self.machine.devices)):
            for side_task in self.tables.side_tasks(cell, stage):
                batch = cell.batch if side_task in TRAIN else None
                found.append((f"{side_task}{batch or ''}-{cell.method}-{stage}", stage, side_task, batch, cell.method))
        return found

    def names(self, cells):
        return {name: rest for cell in cells for name, *rest in self.tasks_of(cell)}

    def groups(self):
        """Cells whose side tasks are loaded together: of one interface. A phase comes after the other, and what has no
        budget first."""
        order = {}
        for cell in self.cells:
            order.setdefault((cell.phase, cell.method), []).append(cell)
        groups = []
        for cells in order.values():
            budgets = list(dict.fromkeys(cell.budget_pct for cell in cells))
            groups.append(sorted(cells, key=lambda cell: (cell.budget_pct is not None, budgets.index(cell.budget_pct))))
        return groups

    def load(self, wanted):
        """Orders `wanted` and nothing else; what is there already stays."""
        self.drop(wanted)
        for name, (stage, side_task, batch, interface) in sorted(
            wanted.items(), key=lambda item: item[1][1] not in TRAIN
        ):
            if name in self.loaded:
                continue
            python = {"python": self.options.python} if side_task in TRAIN and self.machine.gpus else {}
            self.system.load(
                self.options.plugins / f"{side_task}.so",
                name,
                *flags(stage=stage, interface=interface, **python),
                params=self.tables.params(side_task, batch),
            )
            self.loaded[name] = (stage, side_task, batch, interface)

    def drop(self, wanted):
        """Ends all but `wanted`."""
        for name in [name for name in self.loaded if name not in wanted]:
            self.system.ok("stop", name)
            del self.loaded[name]

    def states(self):
        return {info["state"]["task"]: info["state"] for info in self.system.ok("tasks").get("tasks", [])}

    def wait_loaded(self):
        """Until each has made a step, or has ended instead; whoever has is paused. Those that ended are said."""
        waiting, ended = set(self.loaded), {}

        def look():
            states, done = self.states(), []
            for name in list(waiting):
                state = states.get(name)
                if state is None:
                    continue
                if state["verdict"]["kind"]:
                    ended[name] = f"side task {name} was {state['verdict']['kind']}: {state['verdict']['reason']}"
                    waiting.discard(name)
                elif state["counters"]["steps"] > 0:
                    done.append(name)
            if done:
                self.pause(done)
                waiting.difference_update(done)
            return not waiting

        try:
            self.system.wait(look, "first steps", 60)
        except Failure:
            states = self.states()
            for name in waiting:
                state = states.get(name, {})
                ended[name] = f"side task {name} came to no step: {state.get('state')} {state.get('reason')}"
                self.system.ok("stop", name)
        for name in ended:
            self.loaded.pop(name, None)
        return ended

    def pause(self, names):
        if names:
            self.system.ok("pause", *names)

    def resume(self, names):
        self.system.ok("resume", *names)

    # ---- measuring
    def seen(self, topic, first=0):
        """Events from the `first` on whose topic begins so."""
        return [event for event in self.events.lines[first:] if event.get("topic", "").startswith(topic)]

    def wait_profiles(self):
        # One of each content, parameters and interface
        wanted = len({tuple(rest[1:]) for rest in self.loaded.values()})
        try:
            self.system.wait(
                lambda: len(self.system.ok("profile", "list").get("profiles", [])) >= wanted, "profiles", 60
            )
        except Failure:
            self.system.check()  # the rest are taken beside training, or say what is wrong with them

    def go(self):
        self.load(self.names(self.groups()[0]))
        self.training.go()

    def measure(self, done):
        """Every cell; `done` gets each with what was measured or why not."""
        phase, group_of = None, self.groups()
        for group in group_of:
            if self.tables.late():
                return
            if group[0].phase != phase:
                if phase is not None:
                    self.pause(self.loaded)
                    self.drop(self.names(group))  # the next training may want more memory
                    self.training.order(self.tables.job(group[0]))
                self.iteration_ms = self.training.ready_ms(*(() if phase is None else (60,)))
                phase = group[0].phase
                self.block_ms = self.scale.block_iterations * self.iteration_ms
            self.load(self.names(group))
            ended = self.wait_loaded()
            for cell in group:
                if self.tables.late():
                    return
                lost = [why for name, why in ended.items() if name in self.names([cell])]
                try:
                    if lost:
                        raise Failure("; ".join(lost))
                    done(cell, self.cell(cell))
                except Failure as failure:
                    done(cell, failure)
                    self.system.check()  # a process that has ended is no cell's fault
        self.training.end()

    def cell(self, cell):
        tasks = self.tasks_of(cell)
        names = [name for name, *_ in tasks]
        self.set_budget(cell)
        ramp = 0 if cell.budget_pct is None else self.scale.ramp
        others = [name for name in self.loaded if name not in names]
        self.pause(others)
        first = len(self.events.lines)
        resumed_ns = time.monotonic_ns()
        self.resume(names)
        stages = {str(stage) for _, stage, *_ in tasks}

        def working():
            bubbles, iterations = (
                [event for event in self.seen(topic, first) if event["begin_ns"] > resumed_ns]
                for topic in ("bubble.end/", "training.iteration/")
            )
            busy = {str(event["stage"]) for event in bubbles if event["leased"]}
            return stages <= busy and any(event["holdout"] for event in iterations)

        self.system.wait(working, f"side tasks at work and a held-out iteration in {cell.name}", 30)
        ramp_ns = time.monotonic_ns()
        self.rest(ramp)
        from_ns = time.monotonic_ns()
        duty = self.job().get("duty_pct")
        self.rest(self.options.seconds or cell.seconds or self.scale.seconds)
        to_ns = time.monotonic_ns()
        measures = self.job()
        self.pause(names)
        time.sleep(0.4)  # the last events are on their way
        found = self.result(tasks, first, from_ns, to_ns)
        if ramp:  # not among what counts
            found["ramp"] = {"samples": self.samples(first, ramp_ns, from_ns), "duty_pct": duty}
        return dict(found, measures=measures)

    def rest(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.system.check()
            time.sleep(min(0.1, seconds))

    def job(self):
        return next(iter(self.system.ok("status").get("jobs") or []), {})

    def samples(self, first, from_ns, to_ns):
        iterations = self.seen("training.iteration/", first)
        kinds = breakdown.kinds(iterations)
        lines = self.training.iterations(from_ns, to_ns)
        by = breakdown.shift(lines, [event for event in iterations if event["stage"] == 0])
        return self.tables.samples(lines, lambda line: kinds.get(line["iteration"] + by))

    def result(self, tasks, first, from_ns, to_ns):
        states = self.states()
        for name, *_ in tasks:
            verdict = states[name]["verdict"]
            if verdict["kind"]:
                raise Failure(f"side task {name} was {verdict['kind']}: {verdict['reason']}")
        iterations = self.seen("training.iteration/", first)
        samples = self.samples(first, from_ns, to_ns)
        begins = {(event["rank"], event["iteration"]): event["begin_ns"] for event in iterations}
        bubbles = [
            dict(event, iteration_ns=begins.get((event["rank"], event["iteration"])))
            for event in self.seen("bubble.end/", first)
            if from_ns <= event["begin_ns"] and event["end_ns"] <= to_ns
        ]
        stages = breakdown.bubble_breakdown([event for event in bubbles if not event["holdout"]])
        shapes = breakdown.shapes([event for event in bubbles if event["holdout"]])
        for stage, seen in stages.items():
            length = sum(event["end_ns"] - event["begin_ns"] for event in bubbles if str(event["stage"]) == stage)
            seen["share_pct"] = round(100 * length / (to_ns - from_ns), 3)
            seen["waits_ms"] = shapes.get(stage, [])
        with_s = sum(sample[0] for sample in samples if sample[1]) / 1e3
        found = []
        told = {name: self.told(name, states[name], from_ns) for name, *_ in tasks}
        for name, stage, side_task, batch, _ in tasks:
            running_ns = stages.get(str(stage), {}).get("running_ns", 0)
            # A bubble's end tells what all of them had of it.
            all_ns = sum(told[other]["harvested_ns"] for other, beside, *_ in tasks if beside == stage)
            work = self.tables.work(side_task, batch, told[name]["steps"], told[name]["metrics"])
            found.append(
                {
                    "side_task": side_task,
                    "batch": batch,
                    "stage": stage,
                    "counted_by": self.tables.metric(side_task),
                    "seconds": with_s,
                    "work": work * running_ns / all_ns if all_ns > 0 else 0.0,
                }
            )
        return {
            "samples": samples,
            "block_iterations": max(1, round(self.manager_block_ms / self.iteration_ms)),
            "tasks": found,
            "bubbles": stages,
        }

    def told(self, name, state, from_ns):
        """What the side task has done since the worker told of it last before `from_ns`: steps, metrics, ns inside
        steps."""
        seen = [event for event in self.seen("task.progress/") if event["task"] == name]
        before = [event["counters"] for event in seen if event["t_ns"] < from_ns]
        first = before[-1] if before else {"steps": 0, "harvested_ns": 0, "metrics": {}}
        last = seen[-1]["counters"] if seen else state["counters"]
        return {
            "steps": last["steps"] - first["steps"],
            "harvested_ns": last["harvested_ns"] - first["harvested_ns"],
            "metrics": {key: value - first["metrics"].get(key, 0) for key, value in last["metrics"].items()},
        }
