#!/usr/bin/env python3
"""Bubbles that a GPU marks, harvested: manager, a worker for each GPU, a 1F1B training with a stage on each, and a side
task on each.

    hook_gpu_harvest.py --bin DIR --plugins DIR --python DIR --out FILE      # DIR: folders of make dist's tree
    hook_gpu_harvest.py --summary FILE                                       # recomputes the summary from the samples

One training goes through all of it: first hooked and unhooked blocks by turns, without side tasks (what the hook
costs); then each side task for a while, half of the time held out in blocks (iterations there are what the others are
compared with); then the control: the same side task in leases of the same lengths at random times. What a side task
costs in bubbles is less than what it costs at random times by what comes from its timing; clocks and power are sampled
beside, in bubbles and in training's own time. NAME:PCT is a side task that may have so many percent of a GPU's
multiprocessors; the workers are started anew for it, and training goes on. Last, training asks on each GPU for more
memory than a side task leaves (hold). An observer that does not sleep sees marks and leases, so that the way from the
GPU's mark to the lease is measured from the mark itself. Each row is in FILE as soon as it is known, what the observers
saw in FILE.raw.json.gz."""

import argparse
import datetime
import gzip
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "tests"), str(HERE / "gpu")]
import summary as summary_of
from blocks import by_way
from clocks import Clocks
from ranks import BIG, SMALL, Ranks, machine, sized
from rig.gpus import gpus
from rig.processes import Failure, flags, write_whole
from rig.system import System
from rig.tree import Tree, folder
from seen import bubbles_of, clock_of, clocks_of, compute_of, in_order, iterations_of, leases_of, overruns_of, used_of

ORKUT = ["vertices=3072441", "edges=117185083", "tolerance=1e-15", "max_iterations=1000000"]
# Name of the row, plugin (a name in --plugins, or a file), its memory, parameters, whether it needs this Python's torch.
TASKS = {
    "spin": ("gpu_task", "2GiB", ["how=work", "after=0", "step_us=500"], False),
    "pagerank": ("pagerank", "8GiB", ORKUT, False),
    "resnet18": ("resnet18", "16GiB", ["batch=64"], True),
    "resnet18fine": ("resnet18", "16GiB", ["batch=64", "piece_ms=1"], True),
    "resnet18eager": ("resnet18", "16GiB", ["batch=64", "graphs=0"], True),
    "hold": ("gpu_task", "48GiB", ["how=work", "after=0", "step_us=500", "hold_mb=46000"], False),
}


def cpu_of(pid):
    """A process's time on a core so far, s."""
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Run:
    def __init__(self, options):
        self.options = options
        self.system = System(Tree(options.bin, options.plugins, options.python), outside_tmp=True)
        self.ranks, self.shared, self.pages, self.uncounted, self.named = None, None, [], 0, 0
        self.workers, self.thread_pct = [], None  # names, and the share that they give
        self.until = self.system.root / "until"  # tells the ranks when to end
        self.count, self.raw = options.ranks, {}
        self.stages = self.count // 2 if options.other else self.count
        self.record = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
            "synchronise": options.synchronise,
            "other": options.other,
            "samples": [],
            "times": {},
            "failures": [],
        }

    def summary(self):
        return summary_of.summarise(self.record)

    def save(self):
        try:
            summary = self.summary()
        except Exception as error:  # the samples are worth more than it
            summary = {"summary_failed": f"{type(error).__name__}: {error}"}
        write_whole(self.options.out, json.dumps({**self.record, **summary}))

    def wait(self, what, done, seconds):
        def looked():
            if self.ranks is not None:
                self.ranks.check()
            return done()

        return self.system.wait(looked, what, seconds)

    def up(self):
        options, size = self.options, SMALL if self.options.small else BIG
        self.system.start_manager(
            *flags(baseline_pct=options.baseline_pct, baseline_block_ms=options.block_ms, budget_pct=options.budget_pct)
        )
        self.start_workers(100)
        job = {
            "what": "timed",
            "schedule": "1F1B",
            "size": sized(size, self.stages),
            "other": options.other,
            "host_ratio": options.host_ratio,
            "blocks": options.blocks,
            "iterations": options.iterations,
            "warm_up": options.warm_up,
            "until": str(self.until),
            "watchdog_s": options.watchdog,
            "synchronise": options.synchronise,
        }
        if not options.replay:
            visible = ",".join(str(options.gpu + rank) for rank in range(self.count))
            self.ranks = Ranks(
                self.count, options.python, job, run_dir=self.system.run_dir, CUDA_VISIBLE_DEVICES=visible
            )
            return
        told = isinstance(options.replay, dict)  # by --bubbles-ms
        recorded = (options.replay if told else json.loads(pathlib.Path(options.replay).read_text()))["stages"]
        job.update(
            stage=options.stage,
            parts=options.parts,
            lengths_us=recorded[options.stage],
            size=sized(size, len(recorded)),
        )
        # Replays beside each other are no ranks of one training
        self.shared = tempfile.mkdtemp(prefix="fr-", dir="/dev/shm")
        self.ranks = Ranks(
            self.count,
            options.python,
            job,
            (HERE / "gpu/replay.py",),
            run_dir=self.system.run_dir,
            CUDA_VISIBLE_DEVICES=str(options.gpu),
            FREERIDE_SHM_DIR=self.shared,
        )

    def start_workers(self, thread_pct):
        """Ends those there are, if theirs is another share."""
        if self.workers and self.thread_pct == thread_pct:
            return
        for name in self.workers:
            self.system.end(name)
        self.workers, self.thread_pct = [f"worker{i}-{thread_pct}" for i in range(self.count)], thread_pct
        for i, (name, device) in enumerate(zip(self.workers, self.devices())):
            self.system.start_worker(
                device,
                *flags(state_dir=self.system.root / f"s{i}", sandbox=self.options.sandbox, thread_pct=thread_pct),
                *flags(host_memory_bytes=64 << 30, init_ms=90000, profile_ms=90000, log_level="debug"),
                *self.worker_flags(),
                name=name,
                wait=False,
            )
        self.system.wait_workers(self.count, self.ranks is not None, 30)

    def worker_flags(self):
        return []

    def devices(self):
        return [gpu.uuid for gpu in gpus()][self.options.gpu : self.options.gpu + self.count]

    def ready(self):
        """All ranks are past their blocks: their pages and how many iterations the hook has not counted."""
        found = {}

        def look():
            for rank in range(self.count):
                for line in self.ranks.text(rank, "out", 100000).splitlines():
                    words = line.split()
                    if len(words) == 4 and words[1] == "READY":
                        found[rank] = (words[2], int(words[3]))
            return len(found) == self.count

        self.wait("the ranks' blocks", look, self.options.watchdog)
        self.pages = [found[rank][0] for rank in range(self.count)]
        self.uncounted = found[0][1] - self.hook_iteration()
        results = self.ranks.results()
        if self.options.replay:
            self.record["replayed"] = results[0]
        self.record["times"] = by_way(results)
        self.record["versions"] = {name: results[0][name] for name in ("torch", "nccl", "cuda")}
        self.save()
        print(
            "blocks",
            {key: value for key, value in summary_of.summarise(self.record).items() if key != "rows"},
            *(result["page"] for result in results),
            flush=True,
        )

    def hook_iteration(self):
        from freeride import pages  # of --python

        with open(self.pages[0], "rb") as file:
            return pages.read_field(pages.BubblePage, file.fileno(), "iteration")

    def end_training(self):
        write_whole(self.until, str(self.hook_iteration() + self.uncounted + 20))
        _, codes = self.ranks.results_when_ended()
        print("ranks", codes, self.ranks.said(), flush=True)
        self.record["ranks_ended"] = codes
        if self.options.parts:
            self.record["parts"] = self.ranks.results()[0]["parts"]
            self.record["uncounted"] = self.uncounted

    def observe(self, name, seconds, workers=None):
        clocks, workers = Clocks(self.count, self.options.gpu), workers or [0] * self.count
        outs = [self.system.root / f"seen{rank}" for rank in range(self.count)]
        for rank in range(self.count):
            self.system.start(
                f"observer{rank}",
                [sys.executable, HERE / "gpu/observer.py", self.pages[rank], workers[rank], outs[rank]],
            )
        time.sleep(seconds + 0.7)
        for rank in range(self.count):
            self.system.processes[f"observer{rank}"].terminate()
        for rank in range(self.count):
            self.system.finish(f"observer{rank}", 30)
        seen = [json.loads(out.read_text()) for out in outs]
        clocks.stopped.set()
        self.raw[name] = {"seen": seen, "clocks": clocks.samples}
        with gzip.open(self.options.out + ".raw.json.gz", "wt", compresslevel=3) as file:
            json.dump(self.raw, file)
        return seen, clocks.samples

    def keep(self, sample, seen):
        sample["observer_longest_gap_us"] = [one["longest_gap_ns"] / 1e3 for one in seen]
        self.record["samples"].append(sample)
        self.save()
        print(json.dumps(summary_of.row_of(sample)), flush=True)

    def harvest(self, wanted):
        name, _, share = wanted.partition(":")
        plugin, memory, params, python = TASKS[name]
        thread_pct = int(share or 100)
        self.start_workers(thread_pct)
        self.named += 1
        names = [f"{name}{self.named}s{stage}" for stage in range(self.count)]
        words = ["--memory", memory, *(["--python", sys.executable] if python else [])]
        self.wait("the plugin", self.plugin(plugin).exists, 60)
        begin = time.monotonic()
        self.load(names, plugin, params, *words)
        try:
            self.wait_steps(names, 90)
            print(f"{name} steps after {time.monotonic() - begin:.1f} s", flush=True)
            workers = [self.system.processes[worker].pid for worker in self.workers]
            cpu_s, begin = [cpu_of(pid) for pid in workers], time.monotonic()
            seen, clocks = self.observe(wanted, self.options.seconds[wanted], workers)
            cpu_pct = [100 * (cpu_of(pid) - before) / (time.monotonic() - begin) for pid, before in zip(workers, cpu_s)]
            tasks = [self.system.info(one) for one in names]
        finally:
            self.stop(names)
        sides = []
        for one in seen:
            bubbles = bubbles_of(one["edges"])
            sides.append((bubbles, *leases_of(one, bubbles)))
        # They wait for each other: a lease on one is in the time of all
        leased = set().union(*(side[2] for side in sides))
        iterations = iterations_of(seen[0]["edges"])
        ms, kinds = in_order(iterations, lambda i: i in leased)
        sample = {
            "side_task": " ".join([plugin, *params]),
            "name": name,
            "thread_pct": thread_pct,
            "worker_cpu_pct": cpu_pct,
            "iteration_ms": ms,
            "leased": kinds,
            "ways_us": [],
            "overrun_us": [],
            "in_steps_ns": [],
            "bubble_ns": [],
            "steps": [],
            "lengths_ms": [],
            "tasks": tasks,
        }
        for one, (bubbles, delays, _) in zip(seen, sides):
            sample["ways_us"].append(list(delays.values()))
            sample["overrun_us"].append(overruns_of(one, bubbles, delays))
            sample["in_steps_ns"].append(sum(work[2] for work in one["work"]))
            sample["steps"].append(sum(work[0] for work in one["work"]))
            sample["bubble_ns"].append(sum(end - begin for begin, end, word in bubbles if word >> 16 in leased))
            by_wait = {}
            for at in delays:
                by_wait.setdefault(bubbles[at][2] & 0xFFFF, []).append((bubbles[at][1] - bubbles[at][0]) / 1e6)
            sample["lengths_ms"].append([round(statistics.median(by_wait[wait])) for wait in sorted(by_wait)])
        if self.options.parts:
            sample["bubbles"] = used_of(seen[0], *sides[0][:2])
        sample["clocks"] = clocks_of(clocks, [one["edges"] for one in seen], iterations, kinds)
        sample["compute_ms"] = [compute_of(one["edges"], iterations) for one in seen]
        sample["sm_mhz"] = [clock_of(clocks, gpu, one["edges"], iterations) for gpu, one in enumerate(seen)]
        self.keep(sample, seen)

    def control(self, name):
        """The side task that `name` ran, in leases as long as its bubbles were, at random times."""
        plugin, _, params, _ = TASKS[name]
        before = next(sample for sample in self.record["samples"] if sample["name"] == name)
        period = round(summary_of.row_of(before)["unleased_iteration_ms"])
        seconds = self.options.seconds["control"]
        names = [f"control{stage}" for stage in range(self.count)]
        for stage, one in enumerate(names):
            lengths = ",".join(map(str, before["lengths_ms"][stage]))
            device = self.devices()[stage]
            self.system.start(
                one,
                [
                    self.system.tree.program("bench-leases"),
                    self.system.tree.program("freeride-runner"),
                    self.plugin(plugin),
                    device,
                    f"random:{period}:{self.options.control_block_ms}:{seconds + 15:.0f}:{lengths}",
                    0,
                    *params,
                ],
                env={"CUDA_VISIBLE_DEVICES": device},
                stdout=True,
            )
        try:
            self.wait("the control", lambda: all(self.system.log(one, kind="out") for one in names), 90)
            seen, clocks = self.observe("control", seconds)
        finally:
            for one in names:
                self.system.processes.pop(one).terminate()
        work, blocks = [], []
        for one in names:
            lines = [
                json.loads(line) for line in self.system.log(one, 1 << 20, "out").splitlines() if line.endswith("}")
            ]
            blocks.append([line for line in lines if "steps" in line])
            work.append(sum(line["in_steps_ns"] for line in blocks[-1]))
        iterations = iterations_of(seen[0]["edges"])
        block_ns = self.options.control_block_ms * 1_000_000
        by_block = [{line["begin_ns"] // block_ns: line for line in of} for of in blocks]
        in_all = [[of[block] for of in by_block] for block in by_block[0] if all(block in of for of in by_block)]
        all_of_them = [
            (max(line["begin_ns"] for line in lines), min(line["end_ns"] for line in lines)) for lines in in_all
        ]

        def kind(i):
            begin, ms = iterations[i]
            end = begin + ms * 1e6
            if any(b <= begin and end <= e for b, e in all_of_them):
                return True
            return False if begin // block_ns % 2 == 1 and end // block_ns == begin // block_ns else None

        ms, kinds = in_order(iterations, kind)
        sample = {
            "side_task": " ".join([plugin, *params]) + ", at random times",
            "name": "control",
            "iteration_ms": ms,
            "leased": kinds,
            "overrun_us": [],
            "in_steps_ns": [],
            "bubble_ns": [],
            "blocks": blocks,
            "duty_pct": [
                100 * w / max(1, sum(line["end_ns"] - line["begin_ns"] for line in of)) for w, of in zip(work, blocks)
            ],
            "clocks": clocks_of(clocks, [one["edges"] for one in seen], iterations, kinds),
            "compute_ms": [compute_of(one["edges"], iterations) for one in seen],
        }
        self.keep(sample, seen)
        print("duty of the control, %:", sample["duty_pct"], flush=True)

    def hold(self, name):
        """A side task holds memory on each GPU, and training asks for more than is left: once as it is, and once with
        the hook in between."""
        plugin, memory, params, _ = TASKS[name]
        names = [f"{name}s{stage}" for stage in range(self.count)]
        self.load(names, plugin, params, "--memory", memory)
        try:
            self.wait_steps(names, 60)
            pathlib.Path(f"{self.until}.grow").touch()
            outs = [f"{self.ranks.job['out']}.{rank}.grown" for rank in range(self.count)]
            self.wait("the ranks' growth", lambda: all(map(os.path.exists, outs)), 60)
            verdicts = [self.system.task(one)["verdict"] for one in names]
        finally:
            self.stop(names)
        grown = []
        for out in outs:
            with open(out) as file:
                grown.append(json.load(file))
        self.record["memory"] = {"side_task": " ".join([plugin, *params]), "training": grown, "verdicts": verdicts}
        self.save()
        print(json.dumps(self.record["memory"]), flush=True)

    def load(self, names, plugin, params, *words):
        """One on each device."""
        for index, name in enumerate(names):
            stage = self.options.stage + index % self.stages
            self.system.load(self.plugin(plugin), name, "--stage", stage, *words, params=params)

    def plugin(self, name):
        return pathlib.Path(name) if name.endswith(".py") else self.options.plugins / f"{name}.so"

    def wait_steps(self, names, seconds):
        end = time.monotonic() + seconds
        for name in names:
            self.ranks.check()
            self.system.wait_steps(name, 9, max(1, end - time.monotonic()))

    def stop(self, names):
        for name in names:
            try:
                self.system.stop_tasks(name, seconds=30)
            except Failure as failure:
                print(failure, flush=True)

    def down(self):
        if self.ranks is not None:
            self.ranks.end_all()
        self.system.end_all()
        if self.shared:
            shutil.rmtree(self.shared, ignore_errors=True)
        if not self.record["failures"]:
            self.system.close()

    def failed(self, what, error):
        print(f"FAILED: {what}: {type(error).__name__}: {error}", flush=True)
        self.record["failures"].append(f"{what}: {error}")
        for log in sorted(self.system.folder.glob("*.log")):
            if not log.name.startswith("observer"):
                print(f"-- {log.name}\n{self.system.log(log.stem, 1000)}", flush=True)


def parser_of(what):
    """The options of a Run."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--bin", type=folder, help="with bench-leases")
    parser.add_argument("--plugins", type=folder)
    parser.add_argument("--python", type=folder, help="folder of the package freeride")
    parser.add_argument("--out")
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument(
        "--seconds",
        default="spin=30,pagerank=45,resnet18=60,control=45,hold=1",
        help="which side tasks, or NAME:PCT, in which order, and for how long",
    )
    parser.add_argument(
        "--replay", metavar="FILE", help="no pipeline: on one GPU, a stage with the recorded lengths of FILE"
    )
    parser.add_argument(
        "--bubbles-ms",
        metavar="MS,...",
        help="no pipeline: on one GPU, the last of two stages, with waits as long as these",
    )
    parser.add_argument("--gpu", type=int, default=0, help="the first one that is used; several runs may be at it")
    parser.add_argument("--stage", type=int, default=0, help="which one")
    parser.add_argument(
        "--parts", action="store_true", help="of a replay: where the time of its own work goes (gpu/parts.py)"
    )
    parser.add_argument("--baseline-pct", type=int, default=50)
    parser.add_argument("--block-ms", type=int, default=1000, help="of baseline iterations")
    parser.add_argument("--budget-pct", default="100", help="the slowdown budget: as it is, nothing is throttled")
    parser.add_argument("--control-block-ms", type=int, default=1500)
    parser.add_argument("--blocks", type=int, default=48, help="hooked and unhooked, before side tasks")
    parser.add_argument("--iterations", type=int, default=8, help="of such a block")
    parser.add_argument("--warm-up", type=int, default=25)
    parser.add_argument(
        "--synchronise",
        action="store_true",
        help="the host waits for its GPU after each iteration, as a training does that logs its loss",
    )
    parser.add_argument(
        "--host-ratio", type=float, help="the host needs so many times its GPU's time to post (gpu/slow_host.py)"
    )
    parser.add_argument("--watchdog", type=int, default=420)
    parser.add_argument("--ranks", type=int, default=0, help="default: one on each GPU")
    parser.add_argument(
        "--other",
        choices=["data", "tensor"],
        help="half as many stages as GPUs, and other parallelism beside the pipeline's: two pipelines that share their gradients, or two GPUs that share each stage's layers",
    )
    parser.add_argument("--small", action="store_true", help="a small model: to try out this script")
    return parser


def main():
    parser = parser_of(__doc__.splitlines()[0])
    parser.add_argument("--summary", metavar="FILE")
    options = parser.parse_args()
    if options.summary:
        print(json.dumps(summary_of.summarise(json.loads(pathlib.Path(options.summary).read_text())), indent=1))
        return
    if not (options.bin and options.plugins and options.python and options.out):
        parser.error("--bin, --plugins, --python and --out are needed")
    run_all(options, Run)


def run_all(options, kind):
    """All side tasks of `options` in one training."""
    options.seconds = {one.partition("=")[0]: float(one.partition("=")[2]) for one in options.seconds.split(",")}
    if options.bubbles_ms:
        lengths = [float(ms) * 1e3 for ms in options.bubbles_ms.split(",")]
        options.replay, options.stage = {"stages": [[[]], [lengths]]}, 1
    options.ranks = 1 if options.replay else options.ranks or len(gpus())
    sys.path.append(str(options.python))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    run = kind(options)
    run.record["machine"] = machine()[options.gpu : options.gpu + 1] if options.replay else machine()
    begin = time.monotonic()
    try:
        run.up()
        run.ready()
        for name in options.seconds:
            try:
                run.control("pagerank") if name == "control" else run.hold(name) if name == "hold" else run.harvest(
                    name
                )
            except Exception as error:
                run.failed(name, error)
            print(f"-- {name}: {time.monotonic() - begin:.0f} s since the start", flush=True)
        run.record["report"] = run.system.ok("report")
        run.end_training()
    except Exception as error:
        run.failed("the run", error)
        if run.ranks is not None:
            for rank in range(run.count):
                print(run.ranks.text(rank, "out"), run.ranks.text(rank), flush=True)
    finally:
        run.save()
        run.down()


if __name__ == "__main__":
    main()
