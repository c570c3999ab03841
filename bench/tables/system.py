"""Processes of a measurement: a System owns them, none outlives it."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 120  # a bound against hanging for ever, not a limit on speed


class Failure(Exception):
    """What was wanted can't be measured; the text says why."""


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
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("FREERIDE_", "CUDA_MPS_"))}
        library = next((path for path in (programs.parent / "lib", hooks / "freeride") if (path / "libfreeride_hook.so").exists()), None)
        if library is None:
            raise Failure(f"libfreeride_hook.so is in neither {programs.parent / 'lib'} nor {hooks / 'freeride'}: build it first")
        self.env = dict(keep, FREERIDE_RUN_DIR=str(self.run_dir), FREERIDE_JOB="tables", FREERIDE_HOOK_LIBRARY=str(library / "libfreeride_hook.so"),
                        PYTHONPATH=str(hooks), PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1", NCCL_NVLS_ENABLE="0")

    def close(self):
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 20
        for process in self.processes.values():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name, words, **more):
        env = dict(self.env, **more.pop("env", {}))
        more.setdefault("stdout", subprocess.DEVNULL)
        with open(self.folder / f"{name}.err", "ab") as errors:
            self.processes[name] = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, words)], stderr=errors, env=env, **more)
        return self.processes[name]

    def end(self, name):
        """Ends one in good order."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failure(f"{name} did not end within 20 s of SIGTERM: {self.error(name)}") from None

    def error(self, name):
        return (self.folder / f"{name}.err").read_text(errors="replace")[-1500:].strip()

    def check(self):
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise Failure(f"{name} ended with {process.returncode}: {self.error(name)}")

    def wait(self, condition, what, seconds=PATIENCE_S):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check()
            value = condition()
            if value:
                return value
            time.sleep(0.02)
        raise Failure(f"{what}: not within {seconds} s")

    def ctl(self, *words):
        try:
            done = subprocess.run([str(word) for word in (self.programs / "freeride-ctl", "--format", "json", *words)], capture_output=True, text=True,
                                  env=self.env, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            raise Failure(f"freeride-ctl {' '.join(map(str, words))}: no end within {PATIENCE_S} s") from None
        if done.returncode == 3:  # nobody answers yet
            return {}
        if done.returncode != 0:
            raise Failure(f"freeride-ctl {' '.join(map(str, words))}: {done.stderr.strip()}")
        return json.loads(done.stdout or "{}")


class Training:
    """Ranks of train.py, which wait with their imports done until go()."""

    def __init__(self, system, python, hooked, cores, env):
        self.system, self.phase, self.lines = system, None, None
        self.job = {"go": str(system.folder / "go"), "orders": str(system.folder / "orders"), "cores": cores}
        self.python, self.hooked, self.env, self.ranks = python, hooked, env, len(system.devices)

    def prepare(self, first):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        job = json.dumps(dict(self.job, **first))
        for rank in range(self.ranks):
            own = dict(self.env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(self.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            through = ["-m", "freeride.run"] if self.hooked else []
            process = self.system.start(f"rank-{rank}", [self.python, *through, HERE / "train.py", job], env=own,
                                        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True)
            if rank == 0:
                self.lines = Lines(process.stdout)

    def go(self):
        pathlib.Path(self.job["go"]).touch()
        self.phase = 0

    def order(self, job):
        """`job` comes after this phase; None: the end. Near, but ahead of every rank."""
        last = next((line["iteration"] for line in reversed(self.lines.lines) if "iteration" in line), 0)
        self.phase += 1
        path = pathlib.Path(self.job["orders"])
        ready = path.with_suffix(".new")
        ready.write_text(json.dumps({"phase": self.phase, "at": last + 8, "job": job}))
        ready.rename(path)  # whole or not at all

    def ready_ms(self, seconds=PATIENCE_S):
        """Waits until the phase has warmed up; its iterations' length."""
        def said():
            return next((line["ready"] for line in reversed(self.lines.lines) if line.get("phase") == self.phase), None)
        return self.system.wait(said, f"warm-up of the training's phase {self.phase}", seconds)

    def iterations(self, from_ns, to_ns):
        """Those that began and ended in between."""
        return [line for line in list(self.lines.lines) if "iteration" in line and line["end_ns"] <= to_ns and line["end_ns"] - line["ms"] * 1e6 >= from_ns]

    def end(self):
        self.order(None)
        self.system.check()
        limit = time.monotonic() + PATIENCE_S
        for rank in range(self.ranks):
            process = self.system.processes.pop(f"rank-{rank}")
            try:
                process.wait(max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.returncode:
                raise Failure(f"rank-{rank} ended with {process.returncode}: {self.system.error(f'rank-{rank}')}")
