"""freeride demo: the example training of this installation with a side task in its bubbles, in about a minute, as any user.

It has a manager, two workers and folders of its own, so it disturbs no FreeRide that runs. Everything that it prints is measured in this run.
"""

import argparse
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from ._programs import find, tree

JOB, TASK, STAGES, LAYERS = "demo", "pagerank", 2, 4
STAGE = STAGES - 1  # the side task's
PATIENCE_S = 60  # a bound against hanging for ever, not a limit on speed
SAY_EVERY_S = 5
# Half of the iterations are baseline iterations, in short blocks: a minute on shared cores has to show a slowdown.
SETTINGS = {
    "FREERIDE_CONFIG": "/dev/null",
    "FREERIDE_JOB": JOB,
    "FREERIDE_BASELINE_PCT": "50",
    "FREERIDE_BASELINE_BLOCK_MS": "1500",
    "FREERIDE_BUDGET_PCT": "5",
    "PYTHONUNBUFFERED": "1",
}


def say(text):
    print(text, flush=True)


class Failure(Exception):
    """What was wanted did not come about. The text is the line that the user gets."""


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="freeride demo",
        description="Trains a small GPT in two stages on this host's cores, runs a side task in its bubbles, and says what it did to "
        "training. Exit code 0: bubbles were harvested and all losses are equal.",
    )
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch; default: this one")
    parser.add_argument("--seconds", type=float, default=40, help="of training with the side task")
    parser.add_argument(
        "--compare-iterations", type=int, default=16, help="of the same training without FreeRide, for the losses"
    )
    parser.add_argument("--keep", type=pathlib.Path, help="folder for logs and iterations; default: removed at the end")
    return parser.parse_args(argv)


def example():
    """The training that FreeRide is installed with: of a wheel or packed tree, of a Debian package, of a checkout."""
    own = tree()
    places = [os.path.join(own, "examples"), os.path.join(own, "share/freeride/examples")] if own else []
    places.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples"))
    for place in places:
        path = os.path.join(place, "train_gpt.py")
        if os.path.exists(path):
            return os.path.normpath(path)
    raise Failure("this installation has no examples/train_gpt.py; install FreeRide's wheel or packages")


def check_torch(python):
    try:
        done = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise Failure(f"{python} cannot be started: {error.strerror}; name another with --python") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise Failure(
            f"{python} has no torch to train with ({said}); install it: {python} -m pip install torch numpy "
            "--index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple, or as root for Debian's "
            "Python: apt install python3-torch; another Python that has it is named with --python"
        )


def bound():
    """In a child: it ends with this process."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def whole_lines(path):
    """JSON lines, the last one perhaps still being written."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1] if line.startswith("{")]


class Demo:
    """One run. close() ends every process, whatever has happened before."""

    def __init__(self, options):
        self.options = options
        self.train, self.ctl_program = example(), find("freeride-ctl")
        if self.ctl_program is None:
            raise Failure(
                "freeride-ctl is neither in this package nor on the PATH; install FreeRide's wheel or packages"
            )
        usable = sorted(os.sched_getaffinity(0))
        self.cores = [usable[stage % len(usable)] for stage in range(STAGES)]
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="freeride-demo-"))
        self.root.chmod(0o755)  # side tasks of root's worker are other users
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("FREERIDE_")}
        self.env.update(SETTINGS, FREERIDE_RUN_DIR=str(self.root / "r"), FREERIDE_STATE_DIR=str(self.root / "s"))
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        if os.path.basename(package) == "python":  # else it is installed for this Python
            self.env["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [self.env.get("PYTHONPATH")])])
        self.running, self.up = [], None

    def start(self, words, log):
        with open(self.root / log, "wb") as out:
            process = subprocess.Popen(
                list(map(str, words)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,  # a Ctrl-C is this process's
                preexec_fn=bound,
            )
        self.running.append(process)
        return process

    def close(self):
        for process in reversed(self.running):
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self.running = []
        if self.options.keep:
            shutil.copytree(self.root, self.options.keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("r"))
        shutil.rmtree(self.root, ignore_errors=True)

    def ctl(self, *words):
        done = subprocess.run(
            [self.ctl_program, *map(str, words), "--format", "json", "--timeout", str(PATIENCE_S)],
            capture_output=True,
            text=True,
            env=self.env,
            check=False,
        )
        if done.returncode != 0:
            raise Failure(done.stderr.strip() or f"freeride-ctl {words[0]} ended with {done.returncode}")
        return json.loads(done.stdout)

    def last_lines(self, log, most=5):
        return "".join(f"\n    {line}" for line in (self.root / log).read_text(errors="replace").splitlines()[-most:])

    # ---- the run, step by step
    def start_freeride(self):
        words = [self.ctl_program, "up", "--cpus", STAGES, "--listen", "127.0.0.1:0", "--format", "json"]
        for core in self.cores:
            words += ["--cores", core]
        self.up, told = self.start(words, "up.log"), 0
        while True:
            ended = self.up.poll() is not None
            events = whole_lines(self.root / "up.log")
            for event in events[told:]:
                kind, lines = event.get("event"), event.get("last_lines", [])
                if kind == "started" and event["program"] != "manager":
                    say(f"{event['program']}: {event['where']}")
                elif kind in ("ended", "failed", "silent"):
                    say("\n    ".join([f"{event.get('program', '')} {event['what']}".strip(), *lines]))
            told = len(events)
            up = next((event for event in events if event.get("event") == "up"), None)
            if ended or up and f"{STAGES} workers" not in up["what"]:
                raise Failure(f"FreeRide did not come up{'' if told else ':' + self.last_lines('up.log')}")
            if up:
                return
            time.sleep(0.1)

    def start_training(self, name, hook, **bound_by):
        words = [self.options.python, self.train, "--stages", STAGES, "--cores", ",".join(map(str, self.cores))]
        words += ["--layers", LAYERS, "--dim", 128, "--log-json", self.root / f"{name}.jsonl", "--hook", hook]
        for option, value in bound_by.items():
            words += [f"--{option}", value]
        return self.start(words, f"{name}.log")

    def iterations(self, name):
        return whole_lines(self.root / f"{name}.jsonl")

    def finish(self, name, training, seconds, progress):
        """Waits for the training's end, and says how far it is: `progress()`."""
        end, said = time.monotonic() + seconds, time.monotonic()
        while training.poll() is None:
            if time.monotonic() > end:
                raise Failure(f"the training has not ended after {seconds:.0f} s:{self.last_lines(name + '.log')}")
            if self.up.poll() is not None:
                raise Failure(f"FreeRide has ended:{self.last_lines('up.log')}")
            if time.monotonic() - said >= SAY_EVERY_S:
                said = time.monotonic()
                say(progress())
            time.sleep(0.2)
        if training.returncode != 0:
            raise Failure(f"the training ended with {training.returncode}:{self.last_lines(name + '.log')}")

    def state(self):
        return self.ctl("task", TASK)["task"]["state"]

    def train_with(self):
        training = self.start_training("with", "on", seconds=self.options.seconds)
        say(f"training: a GPT of {LAYERS} layers in {STAGES} stages, on the cores {self.cores[0]} and {self.cores[1]}")
        self.ctl("load", f"{TASK}.so", "--stage", STAGE, "--name", TASK)
        say(f"side task: {TASK}, in the bubbles of stage {STAGE}")

        def progress():
            done = self.iterations("with")
            loss = f", loss {done[-1]['loss']:.3f}" if done else ""
            return f"training: iteration {len(done)}{loss}; {TASK}: {self.state()['counters']['steps']} steps"

        self.finish("with", training, self.options.seconds + 2 * PATIENCE_S, progress)
        state = self.state()
        jobs = [job for job in self.ctl("report", "--job", JOB)["jobs"] if job["job"].endswith(JOB)]
        if not jobs:
            raise Failure("the manager has measured no training: no rank has attached to a worker")
        return jobs[0], state

    def train_without(self):
        count = min(self.options.compare_iterations, len(self.iterations("with")))
        say(f"the same training without FreeRide, {count} iterations, to compare the losses")
        training = self.start_training("without", "off", iterations=count)
        self.finish(
            "without",
            training,
            2 * PATIENCE_S + 4 * self.options.seconds,
            lambda: f"training: iteration {len(self.iterations('without'))}",
        )

    def run(self):
        """Returns the table's lines, and what went wrong."""
        check_torch(self.options.python)
        self.start_freeride()
        job, state = self.train_with()
        self.train_without()
        return outcome(job, state, *([line["loss"] for line in self.iterations(name)] for name in ("with", "without")))


def outcome(job, state, losses, losses_without):
    """(lines of the table, what went wrong), by the manager's measures, the task's state and the losses of both runs. Pure."""
    compared = len(losses_without)
    equal = compared > 0 and losses[:compared] == losses_without
    steps, verdict = state["counters"]["steps"], state["verdict"]
    share, bubbles = (job[f"stage_{name}_share_pct"].get(str(STAGE), 0) for name in ("harvested", "bubble"))
    low, high = job["time_increase_ci95_low_pct"], job["time_increase_ci95_high_pct"]
    slowdown = (
        f"{job['time_increase_pct']:+.1f} % (95 %: {low:+.1f} to {high:+.1f} %)"
        if job["measured"]
        else "not measured: too few iterations"
    )
    with_ms = f"{job['iteration_ms'] * (1 + job['time_increase_pct'] / 100):.0f} ms" if job["measured"] else "-"
    rows = [
        (
            "iteration without side task",
            f"{job['iteration_ms']:.0f} ms, the mean of {job['holdout_iterations']} of {job['iterations']}",
        ),
        ("iteration with side task", with_ms),
        ("slowdown", slowdown),
        (f"bubbles of stage {STAGE}", f"{bubbles:.0f} % of the time"),
        ("harvested share", f"{share:.0f} % of these bubbles, without baseline iterations"),
        (f"steps of {TASK}", f"{steps}, {state['counters']['harvested_ns'] / 1e9:.2f} s in all"),
        (
            "losses",
            f"the first {compared} with and without FreeRide are {'equal, bit for bit' if equal else 'NOT equal'}",
        ),
    ]
    wrong = [] if equal else ["the losses with and without FreeRide differ"]
    if verdict["kind"] not in ("", "stopped", "finished"):
        wrong.append(f"{TASK} ended as {verdict['kind']}: {verdict['reason']}")
    if not (steps and share > 0):
        wrong.append(f"no bubble was harvested: {TASK} made {steps} steps; a busy host leaves side tasks no time")
    return [f"  {name:<29}{text}" for name, text in rows], wrong


def main(argv):
    options = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    demo = None
    try:
        demo = Demo(options)
        lines, wrong = demo.run()
        say("\n".join(["", *lines]))
    except Failure as error:
        wrong = [str(error)]
    except KeyboardInterrupt:
        wrong = ["interrupted"]
    finally:
        if demo:
            demo.close()
    for line in wrong:
        print(f"freeride demo: {line}", file=sys.stderr)
    return 1 if wrong else 0
