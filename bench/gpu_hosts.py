#!/usr/bin/env python3
"""A 1F1B training of two stages on two hosts: what holding receives from another host costs, and what is harvested.

    gpu_hosts.py --bin DIR --plugins DIR --python DIR --out FILE     # DIR: folders of make dist's tree, or of a build
    gpu_hosts.py --summary FILE                                      # recomputes the summary from the samples
    gpu_hosts.py … --played LIBCUDA                                  # no GPU: to try out the script

Two ranks of one machine, each with an NCCL_HOSTID and a folder for sent pages of its own; NCCL goes over sockets on
loopback. One training, in turns of blocks: plain (nothing is held), held, and held with what may become of hints: none,
all late by 5 ms, 5 % lost, all forged. Then ResNet18 begins on both GPUs, and plain, held and held-with-leases blocks
follow by turns. Each block is compared with the plain ones of its own turn. How long after the sender's GPU came to a
message the receiver posted is told by an observer that does not sleep: both have one clock here."""

import argparse
import datetime
import glob
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
from ranks import BIG, HOOKED, SMALL, Ranks, machine, sized
from rig.gpus import gpus
from rig.processes import Failure, flags, write_whole
from rig.statistics import interval, quantile
from rig.system import System
from rig.tree import Tree, folder
from seen import bubbles_of, leases_of, overruns_of

COUNT = 2
FAULTY = ("none", "late", "lost", "forged")


# ---- what samples come to ---------------------------------------------------------------------------------------------


def over_plain(blocks, each):
    """kind -> by how much its block is longer than the plain ones of its turn, percent, turn by turn. `each`: blocks of a
    turn."""
    found = {}
    for at in range(0, len(blocks) - each + 1, each):
        turn = blocks[at : at + each]
        plain = [ms for kind, ms in turn if kind == "plain"]
        for kind, ms in turn:
            if kind != "plain" and plain:
                found.setdefault(kind, []).append(100 * (ms / statistics.fmean(plain) - 1))
    return found


def row(values):
    mean, half = interval(values)
    return {
        "mean_pct": round(mean, 3),
        "ci95_low_pct": round(mean - half, 3),
        "ci95_upper_pct": round(mean + half, 3),
        "blocks": len(values),
    }


def cut(iteration_ms, kinds, first, last, length):
    """[(kind, mean ms)] of the blocks of `length` iterations in first … last, each without its first iteration, which still
    has some of the one before."""
    blocks = []
    for at in range(first, last - length + 1, length):
        values = [ms for ms in iteration_ms[at + 1 : at + length] if ms is not None]
        blocks.append((kinds[at], statistics.fmean(values)))
    return blocks


def hint_delays_us(record):
    """From when the sender's GPU came to the message to when the receiver posted, of holds that a hint ended."""
    reached = [dict(map(tuple, one)) for one in record["reached"]["reached"]] if record.get("reached") else []
    delays = []
    for result in record["ranks"]:
        for kind, holds in result["holds"]:
            for _, count, _, peer, begin_ns, ceiling_ns, hint_ns, posted_ns in holds:
                by_hint = hint_ns and begin_ns and posted_ns < begin_ns + ceiling_ns
                if kind in ("held", "leased") and by_hint and peer < len(reached) and count in reached[peer]:
                    at = reached[peer][count]
                    if at >= begin_ns:  # else the data was there before the hold had begun
                        delays.append((posted_ns - at) / 1e3)
    return delays


def summarise(record):
    summary, ranks = {}, record.get("ranks")
    if not ranks or any(one is None or "kinds" not in one for one in ranks):
        return summary
    one, length = ranks[0], record["iterations"]
    warm, filling = record["warm_up"], one.get("filling_from", len(one["kinds"]))
    without = over_plain(cut(one["iteration_ms"], one["kinds"], warm, filling, length), 8)
    pct = {kind: row(values) for kind, values in without.items() if len(values) > 1}
    plain = [ms for ms, kind in zip(one["iteration_ms"][warm:filling], one["kinds"][warm:filling]) if kind == "plain"]
    summary["plain_iteration_ms"] = round(statistics.fmean(filter(None, plain)), 3) if plain else None
    for kind in FAULTY:
        if kind in pct:
            summary[f"hints_{kind}"] = {"held_minus_plain_pct": pct[kind]["mean_pct"], **pct[kind]}
    held = list(without.get("held", ()))
    if "tasks_to" in one:
        blocks = cut(one["iteration_ms"], one["kinds"], one["tasks_from"], one["tasks_to"], length)
        with_tasks = over_plain(blocks, 3)
        held += with_tasks.get("held", [])
        leased = row(with_tasks["leased"])
        summary["resnet18"] = {"time_increase_pct": leased["mean_pct"], **leased, **harvest_of(record)}
        against = [b - a for a, b in zip(with_tasks["held"], with_tasks["leased"])]
        summary["resnet18"]["leased_minus_held"] = row(against)
    if len(held) > 1:
        summary["held_minus_plain"] = row(held)
        summary["hook_time_increase_ci95_upper_pct"] = summary["held_minus_plain"]["ci95_upper_pct"]
    delays = hint_delays_us(record)
    if delays:
        summary.update(
            hint_p50_us=round(quantile(delays, 0.5), 1),
            hint_p99_us=round(quantile(delays, 0.99), 1),
            hint_samples=len(delays),
        )
    summary["holds"] = {
        kind: [sum(len(holds) for of, holds in one["holds"] if of == kind) for one in ranks]
        for kind in ("held", *FAULTY, "leased")
    }
    summary["holdable_ms"] = [
        round(one["after_tasks"]["holdable_ns"] / max(1, one["after_tasks"]["plain_iterations"]) / 1e6, 2)
        if "after_tasks" in one
        else None
        for one in ranks
    ]
    summary["reports"] = [one["reports"][-1][2] for one in ranks]
    return summary


def harvest_of(record):
    """Time inside steps, of the time until the data existed in the remote waits of as many plain iterations."""
    ranks, seen = record["ranks"], record.get("seen")
    if not seen:
        return {}
    inside, holdable, by_stage, steps, overruns = 0, 0, [], [], []
    for one, of in zip(ranks, seen):
        leased = sum(kind == "leased" for kind in one["kinds"][one["tasks_from"] : one["tasks_to"]])
        before, after = one["before_tasks"], one["after_tasks"]
        iterations = after["plain_iterations"] - before["plain_iterations"]
        each_ns = (after["holdable_ns"] - before["holdable_ns"]) / max(1, iterations)
        work = sum(each[2] for each in of["work"])
        inside, holdable = inside + work, holdable + each_ns * leased
        by_stage.append(round(100 * work / (each_ns * leased), 2) if each_ns * leased else None)
        steps.append(round(sum(each[0] for each in of["work"]) / max(1, leased), 2))
        bubbles = bubbles_of(of["edges"])
        overruns += overruns_of(of, bubbles, leases_of(of, bubbles)[0])
    return {
        "harvested_of_holdable_pct": round(100 * inside / holdable, 2) if holdable else None,
        "harvested_of_holdable_by_stage_pct": by_stage,
        "steps_an_iteration": steps,
        "leased_bubbles": len(overruns),
        "overrun_p99_us": quantile(overruns, 0.99),
        "overrun_max_us": max(overruns, default=None),
    }


def table(summary):
    """What a person reads first."""
    lines = [f"plain iteration {summary.get('plain_iteration_ms')} ms; holdable {summary.get('holdable_ms')} ms"]
    rows = [("held", summary.get("held_minus_plain"))]
    rows += [(f"hints {kind}", summary.get(f"hints_{kind}")) for kind in FAULTY]
    rows += [("held with leases", summary.get("resnet18"))]
    for name, one in rows:
        if one:
            lines.append(
                f"{name:18} {one['mean_pct']:+.3f} % [{one['ci95_low_pct']:+.3f}, {one['ci95_upper_pct']:+.3f}], {one['blocks']} blocks"
            )
    tasks = summary.get("resnet18", {})
    lines.append(
        f"harvested {tasks.get('harvested_of_holdable_pct')} % of holdable, by stage {tasks.get('harvested_of_holdable_by_stage_pct')}, "
        f"steps {tasks.get('steps_an_iteration')}, overrun p99 {tasks.get('overrun_p99_us')} us"
    )
    lines.append(
        f"hint p50 {summary.get('hint_p50_us')} us, p99 {summary.get('hint_p99_us')} us of {summary.get('hint_samples')}; "
        f"holds {summary.get('holds')}"
    )
    return "\n".join(lines)


# ---- the run ------------------------------------------------------------------------------------------------------------


class Run:
    def __init__(self, options):
        self.options, self.begin = options, time.monotonic()
        self.system = System(Tree(options.bin, options.plugins, options.python), outside_tmp=not options.played)
        self.shared = tempfile.mkdtemp(prefix="fr-", dir="/dev/shm")
        self.ranks = self.compiling = None
        self.plugin = pathlib.Path(options.plugin) if options.plugin else options.plugins / "resnet18.so"
        self.record = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
            "machine": machine(),
            "iterations": options.iterations,
            "warm_up": options.warm_up,
            "failures": [],
        }

    def say(self, text):
        print(f"[{time.monotonic() - self.begin:.0f} s] {text}", flush=True)

    def save(self):
        if self.ranks is not None:
            self.record["ranks"] = self.ranks.results()
        try:
            summary = summarise(self.record)
        except Exception as error:  # the samples are worth more than it
            summary = {"summary_failed": f"{type(error).__name__}: {error}"}
        write_whole(self.options.out, json.dumps({**self.record, **summary}))
        return summary

    def devices(self):
        return [f"cpu-{i}" for i in range(COUNT)] if self.options.played else [gpu.uuid for gpu in gpus()][:COUNT]

    def compile(self):
        """ResNet18 for this machine's torch, beside everything else (docs/tasks/shipped.md)."""
        if self.plugin.exists():
            return
        self.plugin = self.system.root / "resnet18.so"
        compiling = [self.options.plugins / "resnet/compile.sh", self.plugin.parent, sys.executable]
        self.compiling = self.system.start("compile", [str(word) for word in compiling])

    def up(self):
        options, system = self.options, self.system
        self.compile()
        system.start_manager("--baseline-pct", 0, "--budget-pct", 100)
        self.workers = []
        for i, device in enumerate(self.devices()):
            words = flags(state_dir=system.root / f"s{i}", sandbox=options.sandbox)
            words += flags(init_ms=90000, profile_ms=90000, log_level="debug")
            words += [] if options.played else flags(host_memory_bytes=64 << 30)
            system.start_worker(device, *words, name=f"worker{i}", wait=False)
            self.workers.append(f"worker{i}")
        job = {
            "what": "hosts",
            "schedule": "1F1B",
            "size": sized(SMALL if options.small else BIG, COUNT),
            "iterations": options.iterations,
            "warm_up": options.warm_up,
            "seconds": options.seconds,
            "task_seconds": options.task_seconds,
            "pause": options.pause,
            "watchdog_s": options.watchdog,
            "timeout_s": 120,
            "played": options.played,
        }
        per_rank = {}
        for rank in range(COUNT):
            own = pathlib.Path(self.shared) / f"host{rank}"
            own.mkdir()
            per_rank[rank] = {"NCCL_HOSTID": f"host{rank}", "FREERIDE_SHM_DIR": str(own)}
            if options.played:
                per_rank[rank]["FREERIDE_DEVICE"] = f"cpu-{rank}"
        sockets = {
            "NCCL_NET": "Socket",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_NTHREADS": os.environ.get("NCCL_SOCKET_NTHREADS", "2"),
            "NCCL_NSOCKS_PERTHREAD": os.environ.get("NCCL_NSOCKS_PERTHREAD", "2"),
        }
        self.ranks = Ranks(
            COUNT,
            options.python,
            job,
            (*(() if options.played else HOOKED), HERE / "gpu/hosts_rank.py"),
            run_dir=system.run_dir,
            per_rank=per_rank,
            FREERIDE_HOLD_HOSTS="1",
            **sockets,
            **({"FREERIDE_HOOK_LIBRARY": system.env["FREERIDE_HOOK_LIBRARY"]} if options.played else {}),
        )

    def file(self, name):
        return pathlib.Path(f"{self.ranks.job['out']}.{name}")

    def wait_file(self, name, seconds):
        def there():
            codes = [process.poll() for process in self.ranks.ranks]
            if any(codes):
                raise Failure(f"ranks ended with {codes}")
            return self.file(name).exists()

        end = time.monotonic() + seconds
        while not there():
            if time.monotonic() > end:
                raise Failure(f"{name}: not within {seconds:.0f} s")
            time.sleep(0.02)
        return json.loads(self.file(name).read_text())

    def observe_messages(self):
        pages = [glob.glob(f"{self.shared}/host{rank}/freeride-sent-*")[0] for rank in range(COUNT)]
        words = [f"{page}:{rank}" for rank, page in enumerate(pages)]
        self.system.start(
            "reached",
            [sys.executable, HERE / "gpu/reached.py", self.system.root / "reached.json", *words],
            env={"PYTHONPATH": str(self.options.python)},
        )

    def stop(self, name):
        process = self.system.processes.get(name)
        if process is not None:
            process.terminate()
            self.system.finish(name, 30)

    def pages(self):
        """The ranks' bubble pages."""
        found = []
        for process in self.ranks.ranks:
            path = next((path for pid in children(process.pid) for path in page_of(pid)), None)
            if path is None:
                raise Failure("a rank has no bubble page")
            found.append(path)
        return found

    def go(self):
        options = self.options
        self.wait_file("plan", options.watchdog)
        self.say(f"learned; cycles {json.loads(self.file('plan').read_text())}")
        self.observe_messages()
        self.wait_file("first", options.watchdog)
        self.say("blocks without side tasks are over")
        self.save()
        if options.task_seconds <= 0:
            self.file("go").write_text("-1")
            return
        names = self.load()
        if names is None:
            write_whole(self.file("go"), "-1")
            return
        write_whole(self.file("go"), str(self.wait_file("at", 30) + 24))
        self.wait_file("begun", 120)
        outs = [self.system.root / f"seen{rank}" for rank in range(COUNT)]
        pages = self.pages()
        for rank in range(COUNT):
            pid = self.system.processes[self.workers[rank]].pid
            self.system.start(
                f"observer{rank}",
                [sys.executable, HERE / "gpu/observer.py", pages[rank], pid, outs[rank]],
                env={"PYTHONPATH": str(self.options.python)},
            )
        self.wait_file("ended", options.watchdog)
        for rank in range(COUNT):
            self.stop(f"observer{rank}")
        self.record["seen"] = [json.loads(out.read_text()) for out in outs]
        self.record["tasks"] = [self.system.info(name) for name in names]
        self.record["report"] = self.system.ok("report")
        self.say("blocks with side tasks are over")

    def load(self):
        """A side task on each stage, once it can be made; None if it cannot: the rest is worth having without."""
        try:
            if self.compiling is not None and self.compiling.wait(300) != 0:
                raise Failure(f"compiling ResNet18: {self.system.log('compile', 1500)}")
            self.system.processes.pop("compile", None)
            names = [f"side{stage}" for stage in range(COUNT)]
            words = [] if self.options.played else ["--memory", "16GiB", "--python", sys.executable]
            for stage, name in enumerate(names):
                self.system.load(self.plugin, name, "--stage", stage, *words, params=self.options.param)
            for name in names:
                self.system.wait_steps(name, 3, self.options.begin_seconds)
            self.say("side tasks make steps")
            return names
        except Exception as error:
            self.failed("side tasks", error)
            return None

    def failed(self, what, error):
        self.say(f"FAILED: {what}: {type(error).__name__}: {error}")
        self.record["failures"].append(f"{what}: {error}")
        for log in sorted(self.system.folder.glob("*.log")):
            if not log.name.startswith(("observer", "reached")):
                print(f"-- {log.name}\n{self.system.log(log.stem, 1200)}", flush=True)

    def down(self):
        if self.ranks is not None:
            self.ranks.end_all()
        self.system.end_all()
        shutil.rmtree(self.shared, ignore_errors=True)
        self.system.close()


def children(pid):
    """A process and all that it has started."""
    found = [pid]
    for one in found:
        for path in glob.glob(f"/proc/{one}/task/*/children"):
            try:
                found += map(int, pathlib.Path(path).read_text().split())
            except OSError:
                pass
    return found


def page_of(pid):
    for path in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            if "bubble page" in os.readlink(path):
                yield path
        except OSError:
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=folder)
    parser.add_argument("--plugins", type=folder, help="with resnet18.so, or its sources in resnet/")
    parser.add_argument("--python", type=folder, help="folder of the package freeride")
    parser.add_argument("--include", type=folder, help="with freeride/plugin.h; default: beside --plugins")
    parser.add_argument("--plugin", help="another side task")
    parser.add_argument("--param", action="append", help="KEY=VALUE of the side task")
    parser.add_argument("--out")
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--seconds", type=float, default=140, help="of the blocks without side tasks")
    parser.add_argument("--task-seconds", type=float, default=105, help="of those with; 0: none")
    parser.add_argument("--begin-seconds", type=float, default=60, help="for side tasks to begin")
    parser.add_argument("--iterations", type=int, default=8, help="of a block")
    parser.add_argument("--pause", type=int, default=12, help="plain iterations before and after those with side tasks")
    parser.add_argument("--warm-up", type=int, default=45)
    parser.add_argument("--watchdog", type=int, default=460)
    parser.add_argument("--small", action="store_true", help="a small model")
    parser.add_argument("--played", metavar="LIBCUDA", help="no GPU: the CUDA driver of hooks/tests/fake_cuda.cpp")
    parser.add_argument("--summary", metavar="FILE")
    options = parser.parse_args()
    if options.summary:
        summary = summarise(json.loads(pathlib.Path(options.summary).read_text()))
        print(json.dumps(summary, indent=1))
        print(table(summary))
        return 0
    if not (options.bin and options.plugins and options.python and options.out):
        parser.error("--bin, --plugins, --python and --out are needed")
    options.param = options.param or ["batch=64"]
    sys.path.append(str(options.python))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    run, codes = Run(options), None
    try:
        run.up()
        run.go()
        _, codes = run.ranks.results_when_ended()
        run.say(f"ranks ended with {codes}; {run.ranks.said()}")
        run.record["ranks_ended"], run.record["said"] = codes, run.ranks.said()
    except Exception as error:
        run.failed("the run", error)
        if run.ranks is not None:
            for rank in range(COUNT):
                print(run.ranks.text(rank, "out"), run.ranks.text(rank), flush=True)
    finally:
        try:
            run.stop("reached")
            run.record["reached"] = json.loads((run.system.root / "reached.json").read_text())
        except Exception as error:
            run.record["failures"].append(f"the observer of messages: {error}")
        summary = run.save()
        run.down()
    print(table(summary), flush=True)
    return 1 if run.record["failures"] or codes != [0, 0] else 0


if __name__ == "__main__":
    sys.exit(main())
