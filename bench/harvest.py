#!/usr/bin/env python3
"""The scenario runner: manager, a worker for each device, a training with a stage on each, and side tasks in its bubbles, one kind
after the other in one training.

    harvest.py --bin DIR --plugins DIR --python DIR --out FILE     # DIR: folders of make dist's tree; a stage on each GPU
    harvest.py … --replay bench/results/marks-1f1b-h200.json --stage 3     # one GPU: a stage with recorded waits
    harvest.py … --bubbles-ms 20,12,30,20                          # one GPU: the last of two stages, with waits as long
    harvest.py --build build/dev --cpus 2 --out FILE               # on CPUs: to try out a scenario
    harvest.py --summary FILE                                      # recomputes the rows from the samples

First come hooked and unhooked blocks by turns, without side tasks: what the hook costs (not on CPUs). Then each side task of
--seconds for a while, half of the time in baseline iterations, with which the others are compared. An observer that does not sleep
sees marks and leases, so that the way from the GPU's mark to the lease is measured from the mark itself. Each row is in FILE as soon
as it is known. Other scenarios are subclasses of Scenario (gpu_programs.py), or calls of this program (gpu_waits.py)."""

import argparse
import datetime
import glob
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "tests"), str(HERE / "gpu")]
import analysis

from ranks import BIG, SMALL, Ranks, machine, sized
from rig.gpus import gpus
from rig.processes import Failure, cpu_s, flags, write_whole
from rig.system import System
from rig.tree import Tree, folder

ORKUT = [
    "vertices=3072441",
    "edges=117185083",
    "tolerance=1e-15",
    "max_iterations=1000000",
]  # SNAP's com-Orkut, as large
# Name of the row: plugin, its memory, parameters, whether it needs this Python's torch.
ON_GPUS = {
    "spin": ("gpu_task", "2GiB", ["how=work", "after=0", "step_us=500"], False),
    "pagerank": ("pagerank", "8GiB", ORKUT, False),
    "resnet18": ("resnet18", "16GiB", ["batch=64"], True),
    "resnet18eager": ("resnet18", "16GiB", ["batch=64", "graphs=0"], True),
}
ON_CPUS = {
    "pagerank": ("pagerank", "256MiB", ["scale=10", "tolerance=0", "max_iterations=1000000"], False),
    "image": ("image", "256MiB", ["synthetic=200", "width=100"], False),
}

# NCCL between ranks of one machine that are as if on hosts of their own.
OVER_SOCKETS = {
    "NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "2",
}  # fmt: skip


def children(pid):
    """A process and all that it has started."""
    found = [pid]
    for one in found:
        for path in glob.glob(f"/proc/{one}/task/*/children"):
            found += map(int, pathlib.Path(path).read_text().split())
    return found


def page_of(pid):
    """A rank's bubble page, as a path; None while it has none."""
    for path in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            if "bubble page" in os.readlink(path):
                return path
        except OSError:  # closed meanwhile
            pass
    return None


class Scenario:
    """One training and all that it is beside. The folder of what processes said stays if something failed."""

    def __init__(self, options):
        self.options = options
        tree = Tree.of_build(options.build) if options.build else Tree(options.bin, options.plugins, options.python)
        self.system = System(tree, job="bench", outside_tmp=not options.cpus)
        self.tasks, self.named = dict(ON_CPUS if options.cpus else ON_GPUS), 0
        self.ranks, self.shared, self.pages, self.workers, self.uncounted = None, None, [], [], 0
        self.until = self.system.root / "until"  # tells the ranks when to end
        self.count = options.cpus or options.ranks
        self.stages = self.count // 2 if options.other else self.count
        self.record = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
            "machine": [f"{os.cpu_count()} cores"] if options.cpus else machine(),
            "samples": [],
            "times": {},
            "failures": [],
        }

    # ---- the record
    def summary(self):
        return analysis.summarise(self.record)

    def save(self):
        try:
            summary = self.summary()
        except Exception as error:  # the samples are worth more than it
            summary = {"summary_failed": f"{type(error).__name__}: {error}"}
        write_whole(self.options.out, json.dumps({**self.record, **summary}))

    def failed(self, what, error):
        print(f"FAILED: {what}: {type(error).__name__}: {error}", flush=True)
        self.record["failures"].append(f"{what}: {error}")
        for log in sorted(self.system.folder.glob("*.log")):
            if not log.name.startswith("observer"):
                print(f"-- {log.name}\n{self.system.log(log.stem, 1000)}", flush=True)

    # ---- the system
    def devices(self):
        if self.options.cpus:
            return [f"cpu-{stage}" for stage in range(self.count)]
        return [gpu.uuid for gpu in gpus()][self.options.gpu : self.options.gpu + self.count]

    def wait(self, what, done, seconds):
        def looked():
            if self.ranks is not None:
                self.ranks.check()
            return done()

        return self.system.wait(looked, what, seconds)

    def up(self):
        options, size = self.options, SMALL if self.options.small else BIG
        self.system.start_manager(*self.manager_flags())
        self.start_workers()
        job = {
            "what": "timed",
            "schedule": options.schedule,
            "size": sized(size, self.stages),
            "until": str(self.until),
            "watchdog_s": options.watchdog,
            **{
                name: getattr(options, name)
                for name in ("other", "host_ratio", "blocks", "iterations", "warm_up", "synchronise")
            },
        }
        if options.cpus:
            seconds = sum(options.seconds.values()) + 600
            cores = ",".join(map(str, range(self.count)))
            small = {"dim": 32, "heads": 2, "layers": 4, "seq": 32, "micro_batch_size": 2} if options.small else {}
            self.system.start_training(stages=self.count, seconds=seconds, cores=cores, **small)
        elif options.replay:
            self.replay(job, size)
        else:
            visible = ",".join(str(options.gpu + rank) for rank in range(self.count))
            more = {"per_rank": self.as_if_on_hosts(), **OVER_SOCKETS} if options.hosts else {}
            run_dir = self.system.run_dir
            self.ranks = Ranks(self.count, options.python, job, run_dir=run_dir, CUDA_VISIBLE_DEVICES=visible, **more)

    def replay(self, job, size):
        recorded = self.options.replay["stages"]
        job |= {
            "stage": self.options.stage,
            "lengths_us": recorded[self.options.stage],
            "size": sized(size, len(recorded)),
        }
        # Replays beside each other are no ranks of one training
        self.shared = tempfile.mkdtemp(prefix="fr-", dir="/dev/shm")
        own = {"CUDA_VISIBLE_DEVICES": str(self.options.gpu), "FREERIDE_SHM_DIR": self.shared}
        program = (HERE / "gpu/replay.py",)
        self.ranks = Ranks(1, self.options.python, job, program, run_dir=self.system.run_dir, **own)

    def as_if_on_hosts(self):
        """The environment of ranks each stage of which is on a host of its own, whose waits for each other are held."""
        self.shared = tempfile.mkdtemp(prefix="fr-", dir="/dev/shm")
        found, beside = {}, self.count // self.stages if self.options.other == "tensor" else 1
        for rank in range(self.count):
            host = f"host{rank // beside % self.stages}"
            own = pathlib.Path(self.shared) / host
            own.mkdir(exist_ok=True)
            found[rank] = {"NCCL_HOSTID": host, "FREERIDE_SHM_DIR": str(own), "FREERIDE_HOLD_HOSTS": "1"}
        return found

    def manager_flags(self):
        options = self.options
        words = flags(baseline_pct=options.baseline_pct, baseline_block_ms=options.block_ms)
        return [*words, *flags(budget_pct=options.budget_pct)]

    def worker_flags(self):
        if self.options.cpus:
            return []
        return flags(host_memory_bytes=64 << 30, init_ms=90000, profile_ms=90000, log_level="debug")

    def start_workers(self):
        for i, device in enumerate(self.devices()):
            words = flags(state_dir=self.system.root / f"s{i}", sandbox=self.options.sandbox)
            self.system.start_worker(device, *words, *self.worker_flags(), name=f"worker{i}", wait=False)
            self.workers.append(f"worker{i}")
        self.system.wait_workers(self.count, False, 30)

    def ready(self):
        """All ranks are past their blocks: their pages, and how many iterations the hook has not counted."""
        if self.options.cpus:
            self.system.wait_workers(self.count, True)
            training = self.system.processes["training"].pid

            def found():
                self.pages = [page for page in map(page_of, children(training)) if page]
                return len(self.pages) == self.count

            self.system.wait(found, "the ranks' pages", 60)
            return self.system.wait_iterations(20)
        said = {}

        def look():
            for rank in range(self.count):
                for line in self.ranks.text(rank, "out", 100000).splitlines():
                    words = line.split()
                    if len(words) == 4 and words[1] == "READY":
                        said[rank] = (words[2], int(words[3]))
            return len(said) == self.count

        self.wait("the ranks' blocks", look, self.options.watchdog)
        self.pages = [said[rank][0] for rank in range(self.count)]
        self.uncounted = said[0][1] - self.hook_iteration()
        results = self.ranks.results()
        self.record["times"] = analysis.by_way(results)
        self.record["versions"] = {name: results[0][name] for name in ("torch", "nccl", "cuda")}
        self.save()
        print("blocks", analysis.hook_row(self.record["times"]), flush=True)
        return None

    def hook_iteration(self):
        from freeride import pages  # of --python

        with open(self.pages[0], "rb") as file:
            return pages.read_field(pages.BubblePage, file.fileno(), "iteration")

    def end_training(self):
        if self.ranks is None:
            self.system.processes.pop("training").terminate()
            return
        write_whole(self.until, str(self.hook_iteration() + self.uncounted + 20))
        _, codes = self.ranks.results_when_ended()
        print("ranks", codes, self.ranks.said(), flush=True)
        self.record["ranks_ended"] = codes

    def down(self):
        if self.ranks is not None:
            self.ranks.end_all()
        self.system.end_all()
        if self.shared:
            shutil.rmtree(self.shared, ignore_errors=True)
        if not self.record["failures"]:
            self.system.close()

    # ---- side tasks
    def plugin(self, name):
        return pathlib.Path(name) if name.endswith(".py") else self.system.tree.plugins / f"{name}.so"

    def load(self, names, plugin, params, *words):
        """One on each device."""
        for index, name in enumerate(names):
            stage = self.options.stage + index % self.stages
            self.system.load(self.plugin(plugin), name, "--stage", stage, *words, params=params)

    def wait_steps(self, names, seconds):
        end = time.monotonic() + seconds
        for name in names:
            self.system.wait_steps(name, 9, max(1, end - time.monotonic()))

    def stop(self, names):
        for name in names:
            try:
                self.system.stop_tasks(name, seconds=30)
            except Failure as failure:
                print(failure, flush=True)

    def observe(self, seconds):
        """What an observer beside each rank sees in that time."""
        outs = [self.system.root / f"seen{rank}" for rank in range(self.count)]
        for rank, (page, worker, out) in enumerate(zip(self.pages, self.workers, outs)):
            pid = self.system.processes[worker].pid
            self.system.start(f"observer{rank}", [sys.executable, HERE / "gpu/observer.py", page, pid, out])
        time.sleep(seconds + 0.7)
        for rank in range(self.count):
            self.system.processes[f"observer{rank}"].terminate()
        for rank in range(self.count):
            self.system.finish(f"observer{rank}", 30)
        return [json.loads(out.read_text()) for out in outs]

    def harvest(self, name):
        """One side task on each device, from its steps on."""
        plugin, memory, params, python = self.tasks[name]
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
            cpu, begin = [cpu_s(pid) for pid in workers], time.monotonic()
            seen = self.observe(self.options.seconds[name])
            cpu_pct = [100 * (cpu_s(pid) - before) / (time.monotonic() - begin) for pid, before in zip(workers, cpu)]
            self.record["tasks"] = [self.system.info(one) for one in names]
        finally:
            self.stop(names)
        sample = {"side_task": " ".join([plugin, *params]), "name": name, "worker_cpu_pct": cpu_pct}
        self.keep(sample | analysis.sample_of(seen))

    def keep(self, sample):
        self.record["samples"].append(sample)
        self.save()
        print(json.dumps(self.summary()["rows"][-1]), flush=True)

    def run(self):
        """All side tasks in one training; whether all went well."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        begin = time.monotonic()
        try:
            self.up()
            self.ready()
            for name in self.options.seconds:
                try:
                    self.harvest(name)
                except Exception as error:
                    self.failed(name, error)
                print(f"-- {name}: {time.monotonic() - begin:.0f} s since the start", flush=True)
            self.record["report"] = self.system.ok("report")
            self.end_training()
        except Exception as error:
            self.failed("the run", error)
            for rank in range(self.count if self.ranks is not None else 0):
                print(self.ranks.text(rank, "out"), self.ranks.text(rank), flush=True)
        finally:
            self.save()
            self.down()
        return not self.record["failures"]


def tree_options(add):
    """Where the programs are, and where the record goes."""
    add("--build", type=folder, help="a build's folder, instead of the next three")
    add("--bin", type=folder)
    add("--plugins", type=folder)
    add("--python", type=folder, help="folder of the package freeride")
    add("--out")
    add("--sandbox", default="bubblewrap")


def parser_of(what):
    """The options of a Scenario."""
    parser = argparse.ArgumentParser(description=what.splitlines()[0])
    add = parser.add_argument
    tree_options(add)
    add(
        "--seconds",
        default="spin=30,pagerank=45,resnet18=60",
        help="NAME=S,…: which side tasks, in which order, for how long",
    )
    add("--cpus", type=int, default=0, metavar="STAGES", help="the example's training on so many cores")
    add("--replay", metavar="FILE", help="no pipeline: on one GPU, a stage with the recorded lengths of FILE")
    add(
        "--bubbles-ms",
        metavar="MS,…",
        help="no pipeline: on one GPU, the last of two stages, with waits as long as these",
    )
    add("--stage", type=int, default=0, help="which one")
    add("--gpu", type=int, default=0, help="the first one that is used; several runs may be at it")
    add("--ranks", type=int, default=0, help="default: one on each GPU")
    add("--schedule", default="1F1B")
    add("--other", choices=["data", "tensor"], help="half as many stages as GPUs: two pipelines that share their gradients, or two GPUs that share each stage's layers")  # fmt: skip
    add("--hosts", action="store_true", help="each stage as if on a host of its own, whose waits for others are held")
    add("--baseline-pct", type=int, default=50)
    add("--block-ms", type=int, default=1000, help="of baseline iterations")
    add("--budget-pct", default="100", help="the slowdown budget: as it is, nothing is throttled")
    add("--blocks", type=int, default=48, help="hooked and unhooked, before side tasks")
    add("--iterations", type=int, default=8, help="of such a block")
    add("--warm-up", type=int, default=25)
    add(
        "--synchronise",
        action="store_true",
        help="the host waits for its GPU after each iteration, as one does that logs its loss",
    )
    add("--host-ratio", type=float, help="the host needs so many times its GPU's time to post (gpu/slow_host.py)")
    add("--watchdog", type=int, default=420, help="seconds after which the ranks end in any case")
    add("--small", action="store_true", help="a small model: to try out a scenario")
    add("--summary", metavar="FILE")
    return parser


def parsed(parser):
    options = parser.parse_args()
    if options.summary:
        return options
    if not options.out or not (options.build or (options.bin and options.plugins and options.python)):
        parser.error("--out, and --build or --bin, --plugins and --python are needed")
    options.seconds = {one.partition("=")[0]: float(one.partition("=")[2]) for one in options.seconds.split(",") if one}
    if options.bubbles_ms:
        lengths = [float(ms) * 1e3 for ms in options.bubbles_ms.split(",")]
        options.replay, options.stage = {"stages": [[[]], [lengths]]}, 1
    elif options.replay:
        options.replay = json.loads(pathlib.Path(options.replay).read_text())
    options.python = options.python or HERE.parent / "hooks/python"
    options.ranks = 1 if options.replay else options.ranks or len(gpus())
    sys.path.append(str(options.python))
    return options


def main(kind=Scenario, parser=None, summarise=analysis.summarise):
    options = parsed(parser or parser_of(__doc__))
    if options.summary:
        print(json.dumps(summarise(json.loads(pathlib.Path(options.summary).read_text())), indent=1))
        return
    sys.exit(0 if kind(options).run() else 1)


if __name__ == "__main__":
    main()
