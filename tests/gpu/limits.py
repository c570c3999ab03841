"""The limits that hold a side task on a GPU, against a trainer whose loss and step time must stay what they were.

    python3 limits.py --bin DIR --plugins DIR --python DIR --out FILE [--rounds N] [--sandbox none|bubblewrap] [--dry-run]

Starts a manager, a worker with MPS servers, and a trainer on GPU 0 (which must be free of other work), lets side tasks
misbehave in each way, N rounds of all of them, and compares the trainer's iterations during each with those of quiet
stretches before and after. Prints a table last; exit code 1 if a verdict, the loss or the trainer's life is not as it
must be. --dry-run: on a CPU, with side tasks that misbehave there, to try out this script."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

sys.path.append(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)  # in a packed tree rig lies beside this file
from rig.gpus import gpus, query
from rig.processes import Failure
from rig.statistics import interval
from rig.system import System
from rig.tree import Tree

GIB = 1 << 30
QUIET_S = 1.2
REPLACEMENTS = 20
REPLACED = f"replaced {REPLACEMENTS} times"


class Rig(System):
    """Manager, worker and trainer of one run."""

    def __init__(self, options):
        super().__init__(Tree(options.bin, options.plugins, options.python), outside_tmp=True)
        self.options, self.named = options, 0
        self.device, self.model, self.driver, self.total = "cpu-0", "CPU", "", 0
        if not options.dry_run:
            gpu = gpus()[0]
            self.device, self.model, self.driver, self.total = gpu.uuid, gpu.name, gpu.driver, gpu.memory_bytes
        # No baseline iterations and no throttling: every bubble is the side tasks', and what they cost is measured here.
        self.start_manager("--baseline-pct", 0, "--budget-pct", 100)
        self.start_worker(self.device, "--sandbox", options.sandbox, "--log-level", "debug", name="worker", cores="")
        self.told = self.root / "iterations"
        trainer = [
            sys.executable,
            os.path.join(os.path.dirname(os.path.abspath(__file__)), "trainer.py"),
            "--device",
            self.device,
            "--run-dir",
            self.run_dir,
            "--log",
            self.told,
        ]
        self.trainer = self.start("trainer", trainer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def load_one(self, plugin, params, *more):
        self.named += 1
        self.load(self.tree.plugins / f"{plugin}.so", f"t{self.named}", *more, params=params)
        return f"t{self.named}"

    def wait_first_steps(self, name, steps=10, may_end=False):
        """`may_end`: or until it has ended."""
        try:
            self.wait_steps(name, max(1, steps - self.steps(name)), 60)
        except Failure:
            if not (may_end and self.task(name).get("verdict", {}).get("kind")):
                raise

    def stop_task(self, name):
        self.stop_tasks(name, seconds=60)

    def iterations(self):
        rows = []
        with open(self.told) as file:
            for line in file:
                words = line.split()
                if len(words) == 6 and line.endswith("\n"):
                    rows.append(
                        (int(words[0]), float(words[1]), float(words[2]), float(words[3]), words[4], int(words[5]))
                    )
        return rows

    def quiet(self):
        begin = time.monotonic()
        time.sleep(QUIET_S)
        self.check()
        return begin, time.monotonic()

    def gpu_used(self):
        return int(query("gpu=memory.used", "-i", 0)[0][0]) << 20

    def mps_there(self):
        """(processes of MPS on this machine, folders of this worker's servers); on a CPU a task's processes stand for
        the first."""
        wanted = b"freeride-runner" if self.options.dry_run else b"nvidia-cuda-mps-"
        commands = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    commands.append(file.read())
            except OSError:
                pass
        folder = os.path.join(self.run_dir, "mps")
        return sum(1 for one in commands if wanted in one.split(b"\0")[0]), len(os.listdir(folder)) if os.path.isdir(
            folder
        ) else 0

    def eviction_ms(self, name):
        """From the worker's decision to the task's end, by its log."""
        times = []
        for line in self.log("worker").splitlines():
            if f"side task {name} " in line and ("goes (evicted)" in line or "has ended: evicted" in line):
                hours, minutes, seconds = line.split()[0].split("T")[1].split(":")
                times.append(int(hours) * 3_600_000 + int(minutes) * 60_000 + round(float(seconds) * 1000))
        return times[1] - times[0] if len(times) == 2 else None

    def end_trainer(self):
        try:
            self.trainer.stdin.write("stop\n")
            self.trainer.stdin.flush()
            self.trainer.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            pass


def plugin_of(rig, how, **params):
    """What misbehaves in this way: on a GPU, or, for a dry run, on a CPU."""
    if not rig.options.dry_run:
        return "gpu_task", {"how": how, "after": 800, **params}
    if how in ("work", "grow"):
        return "counter", {"step_us": 1000}
    return "faulty", {"how": {"endless": "spin", "address": "segv"}.get(how, "abort"), "after": 400}


# Each scenario returns (verdict or None, window of the trainer that counts, more for the record).
def run_fault(rig, how, **params):
    begin = time.monotonic()
    name = rig.load_one(*plugin_of(rig, how, **params), "--memory", "1GiB")
    if how != "escape":
        rig.wait_first_steps(name, 1, may_end=True)
    ready = time.monotonic()
    verdict = rig.wait_verdict(name, 60)
    end = time.monotonic()
    time.sleep(0.3)
    return verdict, (ready, end + 0.2), {"init_window": (begin, ready)}


def run_work(rig):
    begin = time.monotonic()
    name = rig.load_one(*plugin_of(rig, "work"), "--memory", "1GiB")
    rig.wait_first_steps(name)
    ready = time.monotonic()
    time.sleep(2.5)
    end = time.monotonic()
    counters = rig.task(name)["counters"]
    if counters["metrics"].get("wrong"):
        raise Failure(f"the side task's memory does not hold what it wrote: {counters['metrics']}")
    rig.stop_task(name)
    more = {
        "init_window": (begin, ready),
        "steps": counters["steps"],
        "peak_memory_mib": counters["peak_memory_bytes"] >> 20,
        "sandbox": rig.info(name).get("sandbox", ""),
    }
    return rig.task(name)["verdict"], (ready, end), more


def run_grow(rig):
    name = rig.load_one(*plugin_of(rig, "grow", after=0, mb=32), "--memory", "1GiB")
    rig.wait_first_steps(name)
    ready = time.monotonic()
    if not rig.options.dry_run:
        rig.wait(lambda: rig.task(name)["counters"]["metrics"].get("full") == 1, "the limit", 60)
    time.sleep(0.5)
    counters = rig.task(name)["counters"]
    end = time.monotonic()
    rig.stop_task(name)
    more = {"allocated_mib": counters["metrics"].get("mib"), "driver_says_mib": counters["peak_memory_bytes"] >> 20}
    return rig.task(name)["verdict"], (ready, end), more


def run_pair(rig):
    good = rig.load_one(*plugin_of(rig, "work"), "--memory", "1GiB")
    rig.wait_first_steps(good)
    bad = rig.load_one(*plugin_of(rig, "address"), "--memory", "1GiB")
    rig.wait_first_steps(bad, 1, may_end=True)
    ready = time.monotonic()
    verdict = rig.wait_verdict(bad, 60)
    before = rig.task(good)["counters"]["steps"]
    rig.wait_steps(good, 50)
    end = time.monotonic()
    counters = rig.task(good)["counters"]
    if counters["metrics"].get("wrong"):
        raise Failure("the good task's memory was harmed")
    rig.stop_task(good)
    return verdict, (ready, end), {"good_task_steps_after_fault": counters["steps"] - before}


def run_replacements(rig):
    """Moves a task from content to content: each has an MPS server of its own, and only the last one's may be left."""
    plugin, params = plugin_of(rig, "work")
    name = rig.load_one(plugin, params, "--memory", "1GiB")
    rig.wait_first_steps(name)
    there = rig.mps_there()
    with open(os.path.join(rig.options.plugins, plugin + ".so"), "rb") as file:
        content = file.read()
    begin = time.monotonic()
    for number in range(REPLACEMENTS):
        path = rig.root / f"content{number}.so"
        with open(path, "wb") as file:
            file.write(content + str(number).encode())  # another content that does the same
        rig.ok("load", path, "--yes", "--replace", name, "--memory", "1GiB")
        path.unlink()
    end = time.monotonic()
    rig.wait(
        lambda: rig.mps_there() == there,
        f"one task's MPS processes and folder, {there} as before {REPLACEMENTS} replacements",
        60,
    )
    rig.wait_steps(name, 10)
    rig.stop_task(name)
    more = {
        "replacements": REPLACEMENTS,
        "mps_processes": there[0],
        "mps_folders": there[1],
        "seconds_each": (end - begin) / REPLACEMENTS,
    }
    return rig.task(name)["verdict"], (begin, end), more


def run_server_dies(rig):
    name = rig.load_one(*plugin_of(rig, "work"), "--memory", "1GiB")
    rig.wait_first_steps(name)
    ready = time.monotonic()
    if not rig.options.dry_run:
        folder = os.path.join(rig.run_dir, "mps")
        (one,) = os.listdir(folder)
        with open(os.path.join(folder, one, "nvidia-cuda-mps-control.pid")) as file:
            os.kill(int(file.read()), signal.SIGKILL)
        rig.wait(lambda: rig.info(name).get("restarts") == 1, "the task to be started anew", 60)
        reason = rig.task(name)["reason"]
        rig.wait_steps(name, 10)
    else:
        reason = ""
    end = time.monotonic()
    rig.stop_task(name)
    return rig.task(name)["verdict"], (ready, end), {"restarts": rig.info(name).get("restarts"), "reason": reason}


def run_trainer_grows(rig):
    """Last: training's high-water mark stays. The task holds 60 % of what is free; the trainer then wants nearly all
    there is."""
    if rig.options.dry_run:
        return None, rig.quiet(), {}
    free = rig.total - rig.gpu_used()
    hold = int(free * 0.6) >> 20
    name = rig.load_one(*plugin_of(rig, "work", hold_mb=hold), "--memory", f"{hold + 256}MiB")
    rig.wait_first_steps(name)
    used = rig.gpu_used()
    ready = time.monotonic()
    want = (free >> 30) - 4
    taken_ms = 50
    rig.trainer.stdin.write(f"grow {want} {taken_ms}\n")
    rig.trainer.stdin.flush()
    verdict = rig.wait_verdict(name, 60)
    line = rig.trainer.stdout.readline()
    if not line.startswith("grown"):
        raise Failure(f"the trainer did not get its memory: {line!r}")
    end = time.monotonic()
    rig.trainer.stdin.write("shrink\n")
    rig.trainer.stdin.flush()
    rig.trainer.stdout.readline()
    more = {
        "side_task_held_mib": hold,
        "used_before_mib": used >> 20,
        "trainer_took_mib": want << 10,
        "total_mib": rig.total >> 20,
        "gib_every_ms": taken_ms,
        "least_free_mib": int(line.split()[2]),
        "eviction_ms": rig.eviction_ms(name),
        "would_not_have_fitted_by_mib": (used >> 20) + (want << 10) - (rig.total >> 20),
    }
    return verdict, (ready, end), more


SCENARIOS = [
    ("works", run_work, {"stopped"}),
    ("illegal address", lambda rig: run_fault(rig, "address"), {"failed", "crashed", "overran"}),
    ("illegal instruction", lambda rig: run_fault(rig, "instruction"), {"failed", "crashed", "overran"}),
    ("endless kernel", lambda rig: run_fault(rig, "endless"), {"overran"}),
    ("allocates past its limit", run_grow, {"stopped"}),
    ("leaves its MPS server", lambda rig: run_fault(rig, "escape"), {"failed"}),
    ("two tasks, one faults", run_pair, {"failed", "crashed", "overran"}),
    ("its MPS server dies", run_server_dies, {"stopped"}),
    (REPLACED, run_replacements, {"stopped"}),
]


def within(rows, window):
    return [row for row in rows if row[1] >= window[0] and row[2] <= window[1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--plugins", required=True, help="folder of gpu_task.so")
    parser.add_argument("--python", required=True, help="folder of the package freeride")
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sandbox", default="none")
    parser.add_argument("--seconds", type=float, default=480, help="no new round after so long")
    parser.add_argument("--only", action="append", help="only the scenario of this name; may be given again")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()

    began = time.monotonic()
    rig = Rig(options)
    records, problems = [], []
    try:
        rig.wait(lambda: rig.told.exists() and len(rig.iterations()) > 45, "the first iterations", 120)
        rig.quiet()
        for round_number in range(options.rounds):
            if time.monotonic() - began > options.seconds:
                break
            for name, run, kinds in SCENARIOS:
                if name == REPLACED and round_number > 0:
                    continue  # long, and about what is left behind
                if options.only and name not in options.only:
                    continue
                before = rig.quiet()
                try:
                    verdict, window, more = run(rig)
                except Failure as failure:
                    problems.append(f"{name}: {failure}")
                    rig.check()
                    for task in [f"t{rig.named - 1}", f"t{rig.named}"]:
                        rig.ctl("stop", task)
                    continue
                time.sleep(0.2)
                after = rig.quiet()
                if verdict["kind"] not in kinds and not options.dry_run:
                    problems.append(f"{name}: verdict {verdict['kind']} ({verdict['reason']})")
                records.append(
                    dict(
                        scenario=name,
                        round=round_number,
                        before=before,
                        window=window,
                        after=after,
                        verdict=verdict,
                        **more,
                    )
                )
                print(
                    f"{time.monotonic() - began:6.1f} s {name}: {verdict['kind']}: {verdict['reason'][:150]}",
                    flush=True,
                )
        if not options.only:
            before = rig.quiet()
            verdict, window, more = run_trainer_grows(rig)
            after = rig.quiet()
        if not options.only and not options.dry_run:
            if verdict["kind"] != "evicted":
                problems.append(f"trainer grows: verdict {verdict['kind']} ({verdict['reason']})")
            records.append(
                dict(
                    scenario="trainer grows",
                    round=0,
                    before=before,
                    window=window,
                    after=after,
                    verdict=verdict,
                    **more,
                )
            )
            print(
                f"{time.monotonic() - began:6.1f} s trainer grows: {verdict['kind']}: {verdict['reason'][:150]}",
                flush=True,
            )
        rig.check()
    except Failure as failure:
        problems.append(str(failure))
    finally:
        rows = rig.iterations() if rig.told.exists() else []
        rig.end_trainer()
        rig.end_all()
    left = [path.name for path in (rig.run_dir / "mps").glob("*")]
    if left:
        problems.append(f"MPS folders left behind: {left}")

    cycle = 20
    losses = [row[4] for row in rows[:cycle]]
    wrong = sum(1 for row in rows if row[4] != losses[row[0] % cycle])
    if wrong or not rows:
        problems.append(f"{wrong} of {len(rows)} losses are not what they were")
    table = []
    for name in dict.fromkeys(record["scenario"] for record in records):
        steps, computes, longest, inits, iterations = [], [], 0.0, [], 0
        for record in (one for one in records if one["scenario"] == name):
            quiet = within(rows, record["before"]) + within(rows, record["after"])
            during = within(rows, record["window"])
            if len(quiet) < 10 or len(during) < 3:
                continue
            base_step = statistics.fmean(row[2] - row[1] for row in quiet) * 1e3
            base_compute = statistics.fmean(row[3] for row in quiet)
            record["step_increase_ms"] = statistics.fmean(row[2] - row[1] for row in during) * 1e3 - base_step
            record["compute_increase_ms"] = statistics.fmean(row[3] for row in during) - base_compute
            record["quiet_step_ms"], record["quiet_compute_ms"], record["iterations"] = (
                base_step,
                base_compute,
                len(during),
            )
            # All that the window cost training: what a fault or a kill costs does not depend on how long the window is.
            record["window_cost_ms"] = sum((row[2] - row[1]) * 1e3 - base_step for row in during)
            record["longest_step_ms"] = max(row[2] - row[1] for row in during) * 1e3
            if "init_window" in record:
                init = within(rows, record["init_window"])
                record["init_cost_ms"] = sum((row[2] - row[1]) * 1e3 - base_step for row in init)
                inits.append(record["init_cost_ms"])
            steps.append(100 * record["step_increase_ms"] / base_step)
            computes.append(record["window_cost_ms"])
            longest = max(longest, record["longest_step_ms"] - base_step)
            iterations += len(during)
        if steps:
            mean, half = interval(steps)
            cost, cost_half = interval(computes)
            table.append(
                dict(
                    scenario=name,
                    rounds=len(steps),
                    iterations=iterations,
                    step_time_increase_pct=mean,
                    ci95_half_pct=half,
                    window_cost_ms=cost,
                    window_cost_ci95_half_ms=cost_half,
                    longest_extra_ms=longest,
                    init_cost_ms=statistics.fmean(inits) if inits else None,
                    verdicts=sorted({one["verdict"]["kind"] for one in records if one["scenario"] == name}),
                )
            )
    result = dict(
        device=rig.model,
        driver=rig.driver,
        sandbox=options.sandbox,
        iterations=len(rows),
        losses_wrong=wrong,
        problems=problems,
        table=table,
        records=records,
        seconds=time.monotonic() - began,
    )
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1, default=lambda value: None)
    for name in ("worker", "manager", "trainer"):
        text = rig.log(name)
        with open(options.out + f".{name}.log", "w") as file:
            file.write(text[-200_000:])
        if problems:
            print(f"---- {name}\n{text[-1500:]}")
    rig.close()
    print(f"\n{len(rows)} iterations, {wrong} losses other than in the first cycle; {rig.device} {rig.model}")
    print(f"{'':26}{'rounds':>7}{'step time':>20}{'cost of all':>20}{'longest':>9}{'init':>8}  verdict")
    for row in table:
        init = f"{row['init_cost_ms']:7.0f}" if row["init_cost_ms"] is not None else "      -"
        print(
            f"{row['scenario']:26}{row['rounds']:7}{row['step_time_increase_pct']:+10.2f} ± {row['ci95_half_pct']:4.2f} %"
            f"{row['window_cost_ms']:+10.1f} ± {row['window_cost_ci95_half_ms']:5.1f}{row['longest_extra_ms']:+9.1f}{init}  {', '.join(row['verdicts'])}"
        )
    for problem in problems:
        print("PROBLEM:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
