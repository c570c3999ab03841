#!/usr/bin/python3
"""Strikes every process, disk, clock and link of a whole system at random, beside a real training, and looks whether
training, leases and side tasks come through it.

    make chaos SECONDS=120
    tests/chaos/run.py --seconds 600 --seed 7 --out bench/results/chaos.json

The plan follows from the seed alone. Exit code 0: no finding; 1: findings, one a line; 2: wrong usage."""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import random
import statistics
import sys
import threading
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[0] = str(SOURCE / "tests")  # this folder is a package of it
sys.path.append(str(SOURCE / "hooks/python"))
from chaos import judge, links, plan
from chaos.blows import Blows
from chaos.ground import Ground
from chaos.keeper import Keeper
from chaos.user import User
from chaos.watch import Watch
from rig.processes import Failure, until
from rig.statistics import quantile
from rig.testing import BUILD, System

# One rank skips optimizer steps all the time.
MODEL = {"dim": 64, "layers": 2, "seq": 64, "micro_batches": 4, "skip_every": 50}
STAGES = 2
# The training begins again after so many iterations, so that so many of it alone tell all of its losses.
PERIOD = 1000
# Bounds of what a daemon may have, far above what it needs: it would pass them within the hour if it grew with blows.
MOST = {"manager KiB": 200_000, "worker KiB": 200_000, "manager descriptors": 128, "worker descriptors": 320}
MOST |= {"recorder KiB": 200_000, "recorder descriptors": 64}
MOST |= {"manager KiB with bulk": 1_200_000, "worker KiB with bulk": 800_000, "recorder KiB with bulk": 200_000}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=60, help="of blows; a part of the training alone comes after that"
    )
    parser.add_argument("--seed", type=int, help="of the plan; without it a new one, which is printed")
    parser.add_argument(
        "--only", action="append", choices=list(plan.KINDS), default=[], help="blows of this kind alone"
    )
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    parser.add_argument("--out", type=pathlib.Path, help="where the results go, as JSON")
    parser.add_argument("--note", default="", help="what else is to be known of this run, for the results")
    parser.add_argument("--logs", type=pathlib.Path, help="where the logs of a run with findings are kept")
    return parser.parse_args()


class Chaos:
    def __init__(self, options, seed):
        self.options, self.seed = options, seed
        self.findings, self.recoveries, self.rounds = [], [], 0
        self._begin, self._lock = time.monotonic(), threading.Lock()

    def say(self, text):
        print(f"[{time.monotonic() - self._begin:7.2f}] {text}", flush=True)

    def fault(self, text):
        with self._lock:
            self.findings.append({"at_s": round(time.monotonic() - self._begin, 2), "what": text})
        self.say(f"FINDING: {text}")

    # ---- the whole
    def run(self):
        with System(self.options.build) as system:
            self.system = system
            ground = Ground(system.state_dir, system.root)
            for kind, why in ground.impossible.items():
                self.say(f"without {kind}: {why}")
            library = system.tree.programs.parent / "test-plugins/chaos_wall_clock.so"
            if not library.exists():
                raise Failure(f"{library} is not there; build the target chaos_wall_clock first")
            system.env.update(ground.environment(library))
            try:
                self._strike(system, ground)
            finally:
                system.end_all()
                why = ground.close()
                if why:
                    self.fault(f"the disk is still in use when all have ended: {why}")
                if self.findings and self.options.logs:
                    self._keep_logs()
            return self._result(ground)

    def _strike(self, system, ground):
        self.keeper = keeper = Keeper(system, self.fault)
        self.watch = watch = Watch(system, keeper, self.fault)
        self.user = user = User(system, self.fault)
        self.blows = Blows(system, keeper, watch, user, ground, self.fault, MODEL)
        program = system.tree.program
        keeper.add(
            "manager",
            program("freeride-manager"),
            *("--baseline-pct", 10, "--baseline-block-ms", 1000, "--budget-pct", 100, "--history", 100_000),
        )
        for stage in range(STAGES):
            words = ("--device", f"cpu-{stage}", "--cores", stage % os.cpu_count(), *system.tree.libraries())
            keeper.add(f"worker-cpu-{stage}", program("freeride-worker"), *words)
        keeper.add("recorder", program("freeride-recorder"), "--keep-free", 0)
        until(lambda: system.ctl("status").code == 0, "the manager's first answer")
        training = system.start_training(STAGES, seconds=1e6, again_after=PERIOD, **MODEL)
        system.wait_workers(STAGES, trained=True)
        watch.find_ranks(training.pid)
        if len(watch.ranks) != STAGES:
            raise Failure(f"the bubble pages of {sorted(watch.ranks)} were found, and {STAGES} are wanted")
        keeper.begin()
        watch.begin()
        user.begin()
        self._recover("before the first blow")
        self.recoveries.clear()
        descriptors = dict(watch.most)
        end = time.monotonic() + self.options.seconds
        for blows_of_round in plan.rounds(self.seed, self.options.only):
            if time.monotonic() >= end:
                break
            self.rounds += 1
            words = ", ".join(
                f"{blow.kind} {blow.target}{' ' + blow.word if blow.word else ''}" for blow in blows_of_round
            )
            self.say(f"round {self.rounds}: {words}")
            threads = [threading.Thread(target=self._one, args=(blow,)) for blow in blows_of_round]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if not self._recover(words):
                break
        self.first_figures = descriptors
        self._finish(system, training)

    def _one(self, blow):
        try:
            self.blows.strike(blow)
        except Exception as error:
            self.fault(f"{blow} itself failed: {type(error).__name__}: {error}")

    def _recover(self, what):
        """Everything is back: daemons answer, ranks are attached, training goes on, and every task makes steps."""
        begin = time.monotonic()
        system, user = self.system, self.user
        missing = "everything"
        iterations = self._iterations()
        steps = None
        while time.monotonic() - begin < 120:
            time.sleep(0.2)
            if system.processes["training"].poll() is not None:
                self.fault(f"training ended with {system.processes['training'].returncode} after {what}")
                return False
            workers = system.ctl("workers")
            states = [one["state"] for one in workers.json.get("workers", [])] if workers.code == 0 else []
            if len(states) != STAGES or not all(one["state"] == "up" and one["stage"] >= 0 for one in states):
                missing = (
                    f"the workers: {[(one['worker'], one['state'], one['stage']) for one in states]}, {workers.err}"
                )
                continue
            deaf = [path.name for path in self._sockets() if not links.listens(path)]
            if deaf:
                missing = f"somebody who listens at {', '.join(deaf)}"
                continue
            if self._iterations() < iterations + 2:
                missing = "training's next iterations"
                continue
            tasks = user.tasks()
            live = {name: tasks.get(name) for name in user.names.values()} if tasks else {}
            if not live or not all(live.values()):
                missing = f"side tasks: {sorted(name for name, state in live.items() if not state)}"
                continue
            now = {name: state["counters"]["steps"] for name, state in live.items()}
            steps = {**now, **(steps or {})}
            idle = [name for name, state in live.items() if now[name] == steps[name] or state["paused_by_user"]]
            if idle:
                missing = f"steps of {[(name, live[name]['state'], live[name]['reason']) for name in idle]}"
                continue
            self.recoveries.append(time.monotonic() - begin)
            return True
        self.fault(f"not everything was back within 120 s after {what}: {missing}")
        return False

    def _sockets(self):
        names = ("commands", "publish", "events", *(f"worker-cpu-{stage}" for stage in range(STAGES)))
        return [self.system.run_dir / f"{name}.sock" for name in names]

    def _iterations(self):
        """How many training has written."""
        with contextlib.suppress(OSError), open(self.system.trainings["training"], "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().split(b"\n")[:-1]
            return json.loads(lines[-1])["iteration"] if lines else 0
        return 0

    # ---- the end
    def _finish(self, system, training):
        """All in good order, and nothing is left."""
        self.say("the end: what is left?")
        try:
            tasks = self.user.end()
        except Failure as error:
            self.fault(f"at the end: {error}")
            tasks = {}
        self.say(f"{len(tasks)} tasks: {self.user.verdicts}")
        counts = {rank.device: int(rank.page.view.iteration) for rank in self.watch.ranks.values()}
        if judge.count_apart(counts.values()):
            self.fault(f"the ranks have counted different iterations: {counts}")
        training.terminate()
        training.wait(30)
        system.processes.pop("training")
        try:
            until(lambda: not self.watch.alive(), "the end of every side task's processes", 30)
        except Failure as error:
            self.fault(f"{error}: {self.watch.alive()} are left")
        self.watch.end()
        try:
            self.keeper.stop()
        except Failure as error:
            self.fault(f"at the end: {error}")
        for rank in self.watch.ranks.values():
            if rank.missed:
                self.fault(f"{rank.missed} bubbles of {rank.device} were not seen: the watch was too slow")
        groups = [
            folder
            for folder, _, _ in os.walk("/sys/fs/cgroup")
            for words in [os.path.basename(folder).split("-")]
            if words[0] == "freeride" and words[-2:-1] and words[-2] in map(str, self.watch.all_pids)
        ]
        if groups:
            self.fault(f"control groups are left: {groups}")
        shm = sorted(os.listdir("/dev/shm")) if "shm-full" not in self.watch_impossible() else []
        if shm:
            self.fault(f"/dev/shm holds {shm}")
        mounts = [
            line.split()[4]
            for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
            if str(system.root) in line.split()[4] and line.split()[4] != str(system.state_dir)
        ]
        if mounts:
            self.fault(f"mounts are left: {mounts}")
        left = sorted(
            path.name
            for path in system.run_dir.iterdir()
            # What stays for the next worker of this folder.
            if not path.name.endswith(".lock") and path.name not in ("task-uids", "host-id")
        )
        if left:
            self.fault(f"the run folder holds {left}")
        for key, most in MOST.items():
            if self.watch.most.get(key, 0) > most:
                self.fault(f"{key}: {self.watch.most[key]}, and {most} is the bound")
        if not self.watch.steps.counts["inside"]:
            self.fault("no step of a side task was seen in a bubble: the watch is blind")
        self._compare(system)

    def watch_impossible(self):
        return self.blows.ground.impossible

    def _compare(self, system):
        """The same training without FreeRide: the same losses to the bit."""
        with_chaos = system.iterations("training")
        period = min(PERIOD, len(with_chaos))
        self.say(f"the same training alone: {period} iterations, for {len(with_chaos)} with chaos")
        alone = system.start_training(STAGES, iterations=period, hook="off", name="alone", **MODEL)
        if alone.wait(600) != 0:
            self.fault(f"the training alone ended with {alone.returncode}; {system.last_words('alone')}")
        system.processes.pop("alone")
        without = system.iterations("alone")
        differ = judge.other_losses(with_chaos, without)
        if differ or len(without) < period:
            self.fault(f"losses differ from iteration {differ[:1]} on, {len(without)} of {period} were made alone")

        def lengths(iterations):
            ms = [(one["end_ns"] - one["begin_ns"]) / 1e6 for one in iterations[3:]] or [0.0]
            return {
                "iterations": len(iterations),
                "median_ms": round(statistics.median(ms), 2),
                "p99_ms": round(quantile(ms, 0.99), 2),
                "longest_ms": round(max(ms), 1),
            }

        self.training = {"with_chaos": lengths(with_chaos), "alone": lengths(without), "equal_losses": not differ}

    def _result(self, ground):
        watch, user = self.watch, self.user
        recoveries = sorted(self.recoveries) or [0.0]
        return {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "machine": f"{os.cpu_count()} cores, Linux {platform.release()}",
            "note": self.options.note,
            "seed": self.seed,
            "seconds": self.options.seconds,
            "rounds": self.rounds,
            "blows": dict(sorted(self.blows.counts.items())),
            "not_struck": ground.impossible,
            "training": self.training,
            "recordings_ended": len(watch.recordings),
            "recovery_s": {"median": round(statistics.median(recoveries), 1), "longest": round(recoveries[-1], 1)},
            "steps": {
                "in_a_bubble": watch.steps.counts["inside"],
                "past_its_end_under_its_lease": watch.steps.counts["late"],
                "let_in_before_its_end_and_begun_after": watch.steps.counts["after"],
                "before_the_first_bubble": watch.steps.counts["unknown"],
                "latest_past_the_end_ms": round(watch.steps.latest_ns / 1e6, 2),
            },
            "tasks": {"accepted": len(user.accepted), "verdicts": dict(sorted(user.verdicts.items()))},
            "two_supervisors_of_one_task_seen": watch.twice,
            "ctl_calls_by_exit_code": {str(code): count for code, count in sorted(user.calls.items())},
            "daemons": {"starts": self.keeper.starts, "most": watch.most, "warnings_and_errors_read": watch.messages},
            "findings": self.findings,
        }

    def _keep_logs(self):
        self.options.logs.mkdir(parents=True, exist_ok=True)
        for path in self.system.root.glob("*.log"):
            (self.options.logs / path.name).write_bytes(path.read_bytes())
        self.say(f"logs are in {self.options.logs}")


def main():
    options = parse()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"chaos: seed {seed} (--seed {seed} repeats the plan)", flush=True)
    chaos = Chaos(options, seed)
    try:
        result = chaos.run()
    except Failure as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    print(f"chaos: {len(result['findings'])} findings in {chaos.rounds} rounds, seed {seed}", flush=True)
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
