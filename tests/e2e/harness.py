"""A whole FreeRide system of real processes in temporary folders, for tests: manager, workers, training ranks, freeride-ctl."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import msgpack
import zmq

SOURCE = pathlib.Path(os.environ.get("FREERIDE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("FREERIDE_BUILD_DIR", SOURCE / "build" / "dev"))
PYTHON = "/usr/bin/python3"
WATCHDOG_S = 120  # a bound against hanging for ever, not a limit on speed


def find_plugin(name):
    """A built plugin or test plugin by file name."""
    for path in sorted(BUILD.rglob(name)):
        return path
    raise FileNotFoundError(f"{name} is not under {BUILD}: build it first")


def until(condition, what, timeout=WATCHDOG_S):
    """Waits until condition() is true and returns its value; fails with `what` after the watchdog's time."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


@contextlib.contextmanager
def first_on_the_processors():
    """Within it this process and what it starts go before whatever else the machine does: their control group has the most weight there is. So a
    busy machine starves no side task, and among themselves all is as ever: side tasks get what training leaves. Where groups (version 1) cannot be
    made, as for an ordinary user, it does nothing."""
    paths = {name: path for _, names, path in (line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines())
             for name in names.split(",")}
    above = pathlib.Path("/sys/fs/cgroup/cpu" + paths.get("cpu", "/nowhere"))
    group = above / f"freeride-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.shares").write_text("262144")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield
        return
    try:
        yield
    finally:
        (above / "cgroup.procs").write_text(str(os.getpid()))
        # Whoever is left in it (there should be nobody: see System) keeps the folder, which harms nobody.
        with contextlib.suppress(OSError):
            group.rmdir()


class Answer:
    """What a freeride-ctl call did."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


class System:
    """Context manager. Every process it started is gone when it ends; logs are printed if the test failed."""

    def __init__(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="freeride-e2e-"))
        self.run_dir, self.state_dir = self.root / "run", self.root / "state"
        for folder in (self.run_dir, self.state_dir, self.state_dir / "plugins"):
            folder.mkdir()
        self.env = dict(os.environ, FREERIDE_RUN_DIR=str(self.run_dir), FREERIDE_STATE_DIR=str(self.state_dir),
                        FREERIDE_BUILD_DIR=str(BUILD), FREERIDE_HOOK_LIBRARY=str(BUILD / "lib/libfreeride_hook.so"),
                        PYTHONPATH=str(SOURCE / "hooks" / "python"),
                        PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        self.env.pop("FREERIDE_CONFIG", None)
        self.processes = {}
        self.events = []
        self._stop = threading.Event()
        self._listener = None
        self._first = contextlib.ExitStack()

    # ---- life ----
    def __enter__(self):
        self._first.enter_context(first_on_the_processors())
        return self

    def __exit__(self, kind, value, trace):
        self._stop.set()
        if self._listener:
            self._listener.join()
        for process in reversed(list(self.processes.values())):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGTERM)
        end = time.monotonic() + 10
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        leftovers = self.runners()
        if kind:
            for log in sorted(self.root.glob("*.log")):
                print(f"---- {log.name}\n{log.read_text(errors='replace')[-6000:]}", file=sys.stderr)
        for pid in leftovers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)
        self._first.close()
        if not kind:
            assert not leftovers, f"runner processes left behind: {leftovers}"

    def spawn(self, name, argv, **env):
        log = open(self.root / f"{name}.log", "ab")
        process = subprocess.Popen([str(a) for a in argv], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=dict(self.env, **env), start_new_session=True)
        log.close()
        self.processes[name] = process
        return process

    def log(self, name):
        return (self.root / f"{name}.log").read_text(errors="replace")

    def kill(self, name, sig=signal.SIGKILL):
        """Sends a signal to one process only (not to its children)."""
        self.processes[name].send_signal(sig)
        if sig == signal.SIGKILL:
            self.processes[name].wait(WATCHDOG_S)

    def runners(self):
        """Pids of freeride-runner processes that belong to this system."""
        found = []
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                if b"freeride-runner" not in command[0]:
                    continue
                # In a sandbox its arguments name no path of the host's, but its mounts do.
                if str(self.root).encode() in b"\0".join(command) or str(self.root) in (folder / "mountinfo").read_text():
                    if (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                        found.append(int(folder.name))
        return found

    # ---- parts ----
    def start_manager(self, *flags):
        process = self.spawn("manager", [BUILD / "bin/freeride-manager", *flags])
        until(lambda: self.ctl("status").code == 0 or process.poll() is not None, "the manager answers")
        assert process.poll() is None, self.log("manager")
        return process

    def start_worker(self, device, *flags, name=None, cores=None, **env):
        name = name or f"worker-{device}"
        cores = cores or int(device.split("-")[1]) % os.cpu_count()
        process = self.spawn(name, [BUILD / "bin/freeride-worker", "--device", device, "--cores", cores, *flags], **env)
        until(lambda: (self.run_dir / f"worker-{device}.sock").exists() or process.poll() is not None, f"{name} listens")
        return process

    def start_training(self, stages=4, iterations=None, seconds=None, hook="on", name="training", **options):
        argv = [PYTHON, SOURCE / "hooks/examples/train_gpt.py", "--stages", stages, "--hook", hook,
                "--log-json", self.root / f"{name}.jsonl"]
        defaults = {"dim": 64, "layers": stages, "seq": 64, "micro-batches": 4}
        for key, value in {**defaults, **{k.replace("_", "-"): v for k, v in options.items()}}.items():
            argv += [f"--{key}", value]
        argv += ["--iterations", iterations] if iterations else ["--seconds", seconds or 600]
        return self.spawn(name, argv, FREERIDE_JOB="gpt")

    def iterations(self, name="training"):
        """Finished iterations of a training run, from its own log."""
        path = self.root / f"{name}.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    # ---- talking to it ----
    def ctl(self, *args, timeout=5):
        done = subprocess.run([str(BUILD / "bin/freeride-ctl"), *[str(a) for a in args], "--format", "json", "--timeout",
                               str(timeout)], capture_output=True, text=True, env=self.env, timeout=WATCHDOG_S)
        return Answer(done.returncode, done.stdout, done.stderr)

    def ok(self, *args):
        answer = self.ctl(*args)
        assert answer.code == 0, f"freeride-ctl {' '.join(map(str, args))}: {answer}"
        return answer.json

    def task(self, name):
        """The task's state map (as on the bus), or {} when there is none."""
        answer = self.ctl("task", name)
        return answer.json["task"]["state"] if answer.code == 0 else {}

    def steps(self, name):
        return self.task(name).get("counters", {}).get("steps", 0)

    def wait_state(self, name, *states):
        return until(lambda: (lambda t: t if t.get("state") in states else None)(self.task(name)), f"{name} is {states}")

    def wait_verdict(self, name):
        return until(lambda: self.task(name).get("verdict", {}).get("kind") and self.task(name)["verdict"], f"{name} ends")

    def wait_steps(self, name, more=5):
        start = self.steps(name)
        return until(lambda: (lambda s: s if s >= start + more else 0)(self.steps(name)), f"{name} makes {more} more steps")

    def wait_iterations(self, more=3, name="training"):
        start = len(self.iterations(name))
        until(lambda: len(self.iterations(name)) >= start + more, f"{more} more iterations of {name}")

    def listen(self, *prefixes):
        """Collects events into self.events from now on."""
        socket = zmq.Context.instance().socket(zmq.SUB)
        socket.connect(f"ipc://{self.run_dir}/events.sock")
        for prefix in prefixes or ("",):
            socket.setsockopt_string(zmq.SUBSCRIBE, prefix)

        def loop():
            while not self._stop.is_set():
                if socket.poll(200):
                    topic, payload = socket.recv_multipart()
                    self.events.append((topic.decode(), msgpack.unpackb(payload)))
            socket.close(0)

        self._listener = threading.Thread(target=loop, daemon=True)
        self._listener.start()

    def seen(self, prefix):
        return [event for topic, event in list(self.events) if topic.startswith(prefix)]
