"""The processes of one run: manager, workers, training ranks, side tasks with and without FreeRide. None outlives its System."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 180  # a bound against hanging for ever, not a limit on speed


class Failure(Exception):
    """The run can't be used; the text says why."""


class Lines:
    """The JSON lines that a process prints, read on a thread of their own, so that it never waits for us."""

    def __init__(self, stream):
        self.lines, self._stream = [], stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for text in self._stream:
            try:
                self.lines.append(json.loads(text))
            except ValueError:
                pass  # somebody's word to people

    def join(self):
        self._thread.join()


class System:
    def __init__(self, programs, plugins, hooks, devices):
        """programs, plugins, hooks: folders of binaries, plugins, the Python package; devices: one name for each stage."""
        self.programs, self.plugins, self.devices = programs, plugins, devices
        # Not in /tmp, which a sandbox has to itself; short, since sockets' names are.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fr-", dir="/run" if os.access("/run", os.W_OK) else None))
        self.folder.chmod(0o755)
        self.run_dir = self.folder / "r"
        self.run_dir.mkdir()
        self.processes = {}
        self.training_end = self.folder / "end"
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("FREERIDE_", "CUDA_MPS_"))}
        library = next((path for path in (programs.parent / "lib", hooks / "freeride") if (path / "libfreeride_hook.so").exists()), None)
        if library is None:
            raise Failure(f"libfreeride_hook.so is in neither {programs.parent / 'lib'} nor {hooks / 'freeride'}: build it first")
        self.env = dict(keep, FREERIDE_RUN_DIR=str(self.run_dir), FREERIDE_JOB="tables", FREERIDE_HOOK_LIBRARY=str(library / "libfreeride_hook.so"),
                        PYTHONPATH=str(hooks), PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1", NCCL_NVLS_ENABLE="0")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 20
        for process in self.processes.values():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- processes ----
    def start(self, name, words, **more):
        env = dict(self.env, **more.pop("env", {}))
        more.setdefault("stdout", subprocess.DEVNULL)
        with open(self.folder / f"{name}.err", "wb") as errors:
            self.processes[name] = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, words)], stderr=errors, env=env, **more)
        return self.processes[name]

    def error(self, name):
        return (self.folder / f"{name}.err").read_text(errors="replace")[-1500:].strip()

    def check(self, *but):
        for name, process in self.processes.items():
            if name not in but and process.poll() is not None:
                raise Failure(f"{name} ended with {process.returncode}: {self.error(name)}")

    def wait(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self.check()
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise Failure(f"{what}: not within {PATIENCE_S} s")

    # ---- FreeRide ----
    def ctl(self, *words):
        done = subprocess.run([str(word) for word in (self.programs / "freeride-ctl", "--format", "json", *words)], capture_output=True, text=True,
                              env=self.env, timeout=PATIENCE_S, check=False)
        if done.returncode == 3:  # nobody answers yet
            return {}
        if done.returncode != 0:
            raise Failure(f"freeride-ctl {' '.join(map(str, words))}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def start_freeride(self, block_ms, budget_pct, cores, flags):
        """Manager and a worker for each stage; half of the blocks are held out. Returns the events as they come."""
        self.start("manager", [self.programs / "freeride-manager", "--state-dir", self.folder / "m", "--holdout-pct", 50, "--holdout-block-ms", block_ms,
                               "--budget-pct", 100 if budget_pct is None else budget_pct])
        libraries = self.programs.parent / "lib"
        # A packed tree's libraries (make dist): a sandbox shows the system's only.
        more = ["--library-dir", libraries] if (libraries / "libzmq.so.5").exists() else []
        for stage, device in enumerate(self.devices):
            own = ["--cores", cores[stage % len(cores)]] if device.startswith("cpu-") else []
            self.start(f"worker-{stage}", [self.programs / "freeride-worker", "--state-dir", self.folder / f"w{stage}", "--device", device, *own, *more, *flags])
        self.wait(lambda: len(self.ctl("workers").get("workers", [])) == len(self.devices), "registration of the workers")
        words = [self.programs / "freeride-ctl", "--format", "json", "events"]
        return Lines(self.start("events", words, stdout=subprocess.PIPE, text=True).stdout)

    def load(self, name, stage, side_task, interface, params, flags):
        words = [word for param in params for word in ("--param", param)]
        self.ctl("load", self.plugins / f"{side_task}.so", "--name", name, "--stage", stage, "--interface", interface, *words, *flags)

    def works(self, name):
        """Whether the side task has made a step. Failure when it has ended instead."""
        state = self.task(name)
        if state["verdict"]["kind"]:
            raise Failure(f"side task {name} was {state['verdict']['kind']}: {state['verdict']['reason']}")
        return state["counters"]["steps"] > 0

    def task(self, name):
        return self.ctl("task", name)["task"]["state"]

    # ---- training and plain side tasks ----
    def start_training(self, job, python, hooked, env):
        """Ranks of train.py; returns rank 0's lines."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        lines = None
        for rank in range(len(self.devices)):
            own = dict(env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(len(self.devices)), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            through = ["-m", "freeride.run"] if hooked else []
            process = self.start(f"rank-{rank}", [python, *through, HERE / "train.py", json.dumps(dict(job, end=str(self.training_end)))], env=own,
                                 stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True)
            if rank == 0:
                lines = Lines(process.stdout)
        return lines

    def end_training(self, lines):
        """Tells it which iteration is the last: near, but ahead of every rank."""
        last = next((line["iteration"] for line in reversed(lines.lines) if "iteration" in line), 0)
        ready = self.training_end.with_suffix(".new")
        ready.write_text(str(last + 8))
        ready.rename(self.training_end)  # whole or not at all

    def ranks_left(self):
        """Whether training goes on. Failure when a rank has failed."""
        left = 0
        for name, process in self.processes.items():
            if name.startswith("rank-"):
                code = process.poll()
                left += code is None
                if code:
                    raise Failure(f"{name} ended with {code}: {self.error(name)}")
        self.check(*(name for name in self.processes if name.startswith("rank-")))
        return left > 0

    def start_plain(self, name, side_task, device, params, cores, env):
        """The side task's own work, without FreeRide; it waits for a line on its input after each of its states. Returns its lines."""
        scratch = self.folder / f"{name}.scratch"
        scratch.mkdir()
        words = [word for param in params for word in ("--param", param)]
        pin = ["taskset", "-c", cores] if device.startswith("cpu-") else []
        process = self.start(name, [*pin, self.programs / "bench-side-task", "run", "--hold", "--plugin", self.plugins / f"{side_task}.so", "--device", device,
                                    "--scratch", scratch, *words], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return Lines(process.stdout)
