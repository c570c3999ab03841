"""The main job, step by step: manager, workers, a training, side tasks in its bubbles, and the report of it."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import time

import machine
import material
import report as report_of
import timeline
from progress import Progress, line

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SOURCE / "tests"))
from rig.events import Recorder
from rig.processes import Failure, flags, kill
from rig.system import System
from rig.tree import Tree

JOB = "demo"
WEB = "127.0.0.1:7473"  # freeride-web's own default
START_S = 60  # a bound against hanging for ever, not a limit on speed


def parse(argv, about=""):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/dev", help="build folder")
    parser.add_argument(
        "--out", type=pathlib.Path, default=SOURCE / "build/demo", help="where report.json and the rest go"
    )
    parser.add_argument("--seconds", type=float, default=30, help="of training with FreeRide")
    parser.add_argument("--compare-iterations", type=int, default=16, help="of training without, for the losses")
    parser.add_argument(
        "--baseline-pct",
        type=float,
        default=50,
        help="share of the time without side tasks, which is what I is measured against",
    )
    parser.add_argument("--baseline-block-ms", type=int, default=2500)
    parser.add_argument(
        "--budget-pct",
        default=5,
        help="slowdown budget; a minute on shared cores cannot tell the usual 1 %% from noise, and noise would throttle side tasks",
    )
    parser.add_argument(
        "--stages",
        type=int,
        default=0,
        help="pipeline stages, a core each as far as they go (0: min(4, cores), at least 2)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--side-tasks",
        default="pagerank,image",
        help="names, separated by commas: one for each stage, or as many more as there are; all: every one that is built",
    )
    return parser.parse_args(argv)


class Demo:
    """One run. finish() ends every process, whatever has happened before."""

    def __init__(self, options):
        self.options = options
        options.build, options.out = options.build.resolve(), options.out.resolve()
        options.out.mkdir(parents=True, exist_ok=True)
        usable = sorted(os.sched_getaffinity(0))
        self.stages = options.stages or max(2, min(4, len(usable)))
        self.side_tasks = material.choose_side_tasks(options.side_tasks, options.build / "plugins", self.stages)
        self.cores = [usable[stage % len(usable)] for stage in range(self.stages)]
        shutil.rmtree(options.out / "logs", ignore_errors=True)
        self.system = System(Tree.of_build(options.build), JOB, logs=options.out / "logs")
        self.data_dir = self.system.root / "data"
        self.data_dir.mkdir()
        self.progress = Progress()
        self.recorder = None  # of the events that the demo itself waits for and reports
        self.recordings = options.out / "recordings"
        shutil.rmtree(self.recordings, ignore_errors=True)
        self.tasks = {}  # name: stage
        self.page = None  # the process of freeride-web

    # ---- small tools ----
    def ctl(self, *arguments):
        answer = self.system.ctl(*arguments, timeout=START_S)
        if answer.code != 0:
            self.system.check()  # a dead manager is the better explanation
            raise Failure(
                f"freeride-ctl {' '.join(map(str, arguments))} failed with {answer.code}: {answer.err.strip()}"
            )
        return answer.json

    def wait_event(self, condition, what, timeout=START_S):
        value = self.recorder.wait(lambda: self.system.check() or condition(), timeout)
        if not value:
            raise Failure(f"{what} did not happen within {timeout:.0f} s; logs are in {self.system.folder}")
        return value

    def losses(self, name):
        return self.system.iterations(name)

    def data_flags(self):
        """What the side tasks may be given."""
        return [flag for folder in (self.data_dir, material.picture_folder()) if folder for flag in ("--data", folder)]

    # ---- the run, step by step ----
    def start_system(self):
        wanted = self.options
        self.system.start_manager(
            *flags(
                baseline_pct=wanted.baseline_pct,
                baseline_block_ms=wanted.baseline_block_ms,
                budget_pct=wanted.budget_pct,
            )
        )
        self.recorder = Recorder(f"ipc://{self.system.run_dir}/events.sock")
        recorder = self.system.tree.program("freeride-recorder")
        self.system.start("recorder", [recorder, "--recordings", self.recordings, "--keep-bytes", "256MiB"])
        self.system.wait(lambda: "ready:" in self.system.log("recorder"), "the flight recorder's start", START_S)
        for stage, core in enumerate(self.cores):
            self.system.start_worker(f"cpu-{stage}", *self.data_flags(), cores=core, wait=False)
        self.start_page()
        self.wait_event(
            lambda: len({e["worker"] for e in self.recorder.all("worker.state") if e["state"] == "up"}) == self.stages,
            f"registration of {self.stages} workers",
        )
        self.progress.say(f"manager and {self.stages} workers are up, on cores {', '.join(map(str, self.cores))}")

    def start_page(self):
        """The live page, for whoever wants to look; without it (its port is taken, say) the demo is the same."""
        name = "web"
        try:
            process = self.system.start(name, [self.system.tree.program("freeride-web"), "--listen", WEB])
        except Failure as error:
            return self.progress.say(f"no live page: {error}")
        # It is nobody's failure when it ends: the system does not watch it.
        self.page = self.system.processes.pop(name)
        end = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < end:
            if "ready:" in self.system.log(name):
                return self.progress.say(f"live page: http://{WEB}/")
            time.sleep(0.05)
        said = self.system.log(name).strip().splitlines() or ["freeride-web does not start"]
        self.progress.say(f"no live page: {said[-1]}")

    def drop_plugins(self):
        drop_folder = self.system.state_dir / "plugins"
        names = [f"{name}.so" for name in dict.fromkeys(self.side_tasks)]
        for name in names:
            shutil.copy(self.system.tree.plugin(name), drop_folder / name)
        self.wait_event(
            lambda: len({(e["worker"], e["name"]) for e in self.recorder.all("plugin.state") if e["state"] == "added"})
            == len(names) * self.stages,
            "noticing of the dropped plugins",
        )
        self.progress.say(f"dropped {', '.join(names)} into {drop_folder}: every worker knows them")

    def start_training(self):
        self.start_trainer("training", "on", seconds=self.options.seconds)
        self.wait_event(
            lambda: len({e["rank"] for e in self.recorder.all("training.state") if e["state"] == "active"})
            == self.stages,
            f"attaching of {self.stages} ranks",
        )
        self.progress.say(
            f"training runs: a GPT over {self.stages} stages, 1F1B, 4 micro-batches, gloo, hooked by python -m freeride.run"
        )

    def start_trainer(self, name, hook, **bound):
        self.system.start_training(
            self.stages,
            hook=hook,
            name=name,
            log_json=self.options.out / f"{name}.jsonl",
            layers=4 * self.stages,
            micro_batches=4,
            seed=self.options.seed,
            cores=",".join(map(str, self.cores)),
            **bound,
        )

    def load_tasks(self):
        graph = self.data_dir / "identifiers.txt"
        names = material.write_identifier_graph(graph)
        pictures = material.picture_folder()
        for index, plugin in enumerate(self.side_tasks):
            # Where it finds them inside its sandbox
            seen = {"/graph": self.data_dir, "/pictures": pictures}
            params = material.SIDE_TASKS[plugin](f"/graph/{graph.name}", "/pictures" if pictures else None)
            stage = index % self.stages
            name = f"{plugin}-{stage}" if plugin in self.tasks else plugin
            flags = [flag for param in params for flag in ("--param", param)]
            for inside, folder in seen.items():
                if any(inside in param for param in params):
                    flags += ["--read", f"{folder}:{inside}"]
            self.progress.say(
                f"$ freeride-ctl load {plugin}.so --stage {stage} --name {name} {' '.join(flags)}".rstrip()
            )
            self.ctl("load", f"{plugin}.so", "--stage", stage, "--name", name, *flags)
            self.tasks[name] = stage
        return names

    def watch_training(self):
        training = self.system.processes["training"]
        end = time.monotonic() + self.options.seconds + START_S
        while training.poll() is None and time.monotonic() < end:
            if any(process.poll() is not None for name, process in self.system.processes.items() if name != "training"):
                self.system.check()
            self.progress.show(line(self.recorder.events[:], self.losses("training")))
            time.sleep(0.5)
        self.progress.end()
        self.system.finish("training", 1)

    def stop_system(self):
        """Stops the tasks as a user would, takes the report, ends the daemons."""
        self.wait_event(
            lambda: len({e["rank"] for e in self.recorder.all("training.state") if e["state"] in ("gone", "lost")})
            == self.stages,
            "detaching of the ranks",
        )
        for name in self.tasks:
            state = self.ctl("task", name)["task"]["state"]
            if not state["verdict"]["kind"]:
                self.ctl("stop", name)
        self.wait_event(
            lambda: {e["task"] for e in self.recorder.all("task.state") if e["verdict"]["kind"]} >= set(self.tasks),
            "stopping of the side tasks",
        )
        answer = self.ctl("report")
        self.system.end("recorder")
        for stage in range(self.stages):
            self.system.end(f"worker-cpu-{stage}")
        self.system.end("manager")
        self.recorder.close()
        jobs = [job for job in answer["jobs"] if job["job"] == JOB]
        if not jobs:
            raise Failure(f"the manager's report has no job '{JOB}'")
        return jobs[0], [task for task in answer["tasks"] if task["state"]["task"] in self.tasks]

    def train_alone(self):
        count = min(self.options.compare_iterations, len(self.losses("training")))
        self.progress.say(f"the same training without FreeRide, {count} iterations, to compare losses")
        if self.page and self.page.poll() is None:
            self.progress.say("the demo's manager has ended: the live page shows no more")
        self.start_trainer("alone", "off", iterations=count)
        self.system.finish("alone", 4 * self.options.seconds + START_S)

    def keep_results(self, names):
        """What the side tasks made: so that one sees that it was work."""
        results = self.options.out / "results"
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir()
        found = []
        for name in self.tasks:
            files = sorted(
                p
                for p in (self.system.state_dir / "tasks" / name).rglob("*")
                if p.suffix.lower() in (".jpg", ".jpeg", ".png", ".txt")
            )
            for path in files[:3]:
                shutil.copy(path, results / f"{name}-{path.name}")
            ranks = [p for p in files if p.name == "ranks.txt"]
            if ranks:
                numbers = [
                    text.split()[0] for text in ranks[0].read_text().splitlines() if text and not text.startswith("#")
                ]
                found.append(
                    f"{name}: the identifiers of highest rank in the standard library are "
                    + ", ".join(
                        names[int(number)] for number in numbers[:6] if number.isdigit() and int(number) < len(names)
                    )
                )
            pictures = [p for p in files if p.suffix != ".txt"]
            if pictures:
                found.append(f"{name}: watermarked pictures, e.g. {results / f'{name}-{pictures[0].name}'}")
        return found

    def write_trace(self, path):
        path.unlink(missing_ok=True)
        self.ctl("recording", "export", path, "--recording", self.recordings)

    def run(self):
        watch = machine.Watch()
        self.start_system()
        self.drop_plugins()
        self.start_training()
        names = self.load_tasks()
        self.watch_training()
        job, tasks = self.stop_system()
        load = watch.end()
        results = self.keep_results(names)
        self.train_alone()
        events = self.recorder.events
        report = report_of.build(
            job, tasks, events, self.losses("training"), self.losses("alone"), self.recorder.lost, load
        )
        out = self.options.out
        (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        self.write_trace(out / "trace.json")
        timeline.draw(out / "timeline.svg", events)
        self.progress.say(
            "\n"
            + report_of.table(report)
            + "\n\n"
            + "\n".join(f"  {text}" for text in results)
            + ("\n" if results else "")
        )
        self.progress.say(f"  {out}/report.json, trace.json (open it in https://ui.perfetto.dev), timeline.svg, logs/")
        self.progress.say(f"  the run again, as if it were live: freeride-web --replay {self.recordings}")
        if self.page and self.page.poll() is None:
            self.progress.say(f"  the live page, http://{WEB}/, and its manager end with the demo")
        return report

    def finish(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # it takes seconds at most, and has to be whole
        self.progress.end()
        if self.recorder:
            self.recorder.close()
        if self.page:
            kill(self.page)
        self.system.close()
