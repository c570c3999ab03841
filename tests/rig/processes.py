"""Processes that end with whoever started them, and with this process, however that one ends."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

PATIENCE_S = 120  # a bound against hanging for ever, not a limit on speed
ENDING_S = 20  # from SIGTERM on


class Failure(Exception):
    """What was wanted did not come about. The text is the line that the user gets."""


def flags(**options):
    """A program's flags: state_dir=x is --state-dir x."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]


def write_whole(path, text):
    """Whoever reads the file finds all of it, or what was there before."""
    path = pathlib.Path(path)
    ready = path.with_name(path.name + ".part")
    ready.write_text(text)
    ready.rename(path)


def until(condition, what, seconds=PATIENCE_S):
    """Waits until condition() is true, and returns its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise Failure(f"{what}: not within {seconds:g} s")


class Lines:
    """The JSON lines that a process prints, read on a thread of their own, so that it never waits for us. What is no
    JSON is somebody's word to people."""

    def __init__(self, stream):
        self.lines, self._stream = [], stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for text in self._stream:
            with contextlib.suppress(ValueError):
                self.lines.append(json.loads(text))

    def join(self):
        self._thread.join()


def cpu_s(pid):
    """A process's time on a core so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid):
    """What a process has of the host's memory; Failure when it is gone."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise Failure(f"process {pid} is gone")


def bound_to(pid):
    """The words before a program's that make it end with the process that starts it. Whoever started it may have gone
    before the kernel is told of the bond: that is looked at afterwards."""
    return ["setpriv", "--pdeathsig", "KILL", "sh", "-c", f'[ $PPID = {pid} ] && exec "$@"', "sh"]


class Processes:
    """Each has what it says in `folder`/NAME.log, and leads a session of its own."""

    def __init__(self, folder, env):
        self.folder, self.env = pathlib.Path(folder), env
        self.folder.mkdir(parents=True, exist_ok=True)
        self.processes = {}  # by name, in the order of their starts; no ended one that was waited for

    def start(self, name, words, env=None, **more):
        """`env`: more of the environment. `more` goes to Popen; stdout=True is a file of its own, NAME.out."""
        if more.get("stdout") is True:
            more["stdout"] = open(self.folder / f"{name}.out", "ab")
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*bound_to(os.getpid()), *map(str, words)],
                **{
                    "stdin": subprocess.DEVNULL,
                    "stdout": log,
                    "stderr": log,
                    "start_new_session": True,
                    "env": {**self.env, **(env or {})},
                    **more,
                },
            )
        return self.processes[name]

    def start_ranks(self, words, count, env=None, per_rank=None, name="rank", first=None, **more):
        """A training's processes rank-0, rank-1, …, with what torch.distributed reads from the environment. `per_rank`:
        {rank: more of it}; `first`: `more` of the first one alone."""
        return [
            self.start(
                f"{name}-{rank}",
                words,
                {**(env or {}), **own, **(per_rank or {}).get(rank, {})},
                **{**more, **((first or {}) if rank == 0 else {})},
            )
            for rank, own in enumerate(rank_environments(count))
        ]

    def log(self, name, most=1 << 30, kind="log"):
        return (self.folder / f"{name}.{kind}").read_text(errors="replace")[-most:]

    def last_words(self, name, most=1500):
        return f"the end of what it said:\n{self.log(name, most).strip()}"

    def check(self):
        """Failure when a process has ended that should be running."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise Failure(f"{name} ended with {process.returncode}; {self.last_words(name)}")

    def wait(self, condition, what, seconds=PATIENCE_S):
        """As until(), but a process that ends meanwhile is the Failure."""
        return until(lambda: self.check() or condition(), what, seconds)

    def finish(self, name, seconds=PATIENCE_S):
        """Waits for a process that ends by itself; Failure when it does not, or not well."""
        process = self.processes.pop(name)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            kill(process)
            raise Failure(f"{name} did not end within {seconds:g} s; {self.last_words(name)}") from None
        if code != 0:
            raise Failure(f"{name} failed with {code}; {self.last_words(name)}")

    def end(self, name, seconds=ENDING_S, number=signal.SIGTERM):
        """Ends a daemon in good order; Failure when it does not go, or says that it failed."""
        self.processes[name].send_signal(number)
        self.finish(name, seconds)

    def kill(self, name, number=signal.SIGKILL):
        """Sends a signal to one process only, and not to its children."""
        self.processes[name].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[name].wait(PATIENCE_S)

    def end_all(self, seconds=ENDING_S):
        """Ends whatever is left. Never raises."""
        left = list(self.processes.values())[::-1]
        self.processes.clear()
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
        end = time.monotonic() + seconds
        for process in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            kill(process)


def kill(process):
    """And whoever is in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def rank_environments(count):
    """What torch.distributed reads, for each rank of a training on this host."""
    port = str(free_port())
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in range(count)
    ]


_ports = iter(range(20000 + os.getpid() * 16 % 10000, 32000))


def free_port():
    """For a training's ranks to meet at. None that the kernel gives to others meanwhile, such as NCCL's own sockets;
    never the same twice."""
    for port in _ports:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise Failure("no port below 32000 is free")
