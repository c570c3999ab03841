"""The processes of the demo: started together, watched, and ended in every case."""
import os
import pathlib
import signal
import subprocess
import time


class DemoError(Exception):
    """Something of the run failed; the text is the line the user gets."""


class Fleet:
    """Starts processes with their output in log files. None outlives this object, nor this process."""

    def __init__(self, env, log_dir):
        self.env, self.log_dir = env, pathlib.Path(log_dir)
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.running = {}  # name: process

    def start(self, name, argv, **env):
        # setpriv: the process dies with this one, however this one ends.
        with open(self.log_dir / f"{name}.log", "wb") as log:
            process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, argv)], stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=subprocess.STDOUT, env=dict(self.env, **env), start_new_session=True)
        self.running[name] = process
        return process

    def log_tail(self, name, lines=5):
        text = (self.log_dir / f"{name}.log").read_text(errors="replace")
        return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])

    def check(self):
        """Raises DemoError when a process has ended that should be running."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise DemoError(f"{name} ended unexpectedly with {process.returncode}; the end of its log:\n{self.log_tail(name)}")

    def finish(self, name, timeout):
        """Waits for a process that ends by itself; DemoError when it fails or does not end."""
        process = self.running.pop(name)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._kill(process)
            raise DemoError(f"{name} did not end within {timeout:.0f} s; the end of its log:\n{self.log_tail(name)}") from None
        if code != 0:
            raise DemoError(f"{name} failed with {code}; the end of its log:\n{self.log_tail(name)}")

    def stop(self, name, timeout=15):
        """Ends a daemon in good order; DemoError when it does not go, or says that it failed."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._kill(process)
            raise DemoError(f"{name} did not end on SIGTERM within {timeout} s; the end of its log:\n{self.log_tail(name)}") from None
        if code != 0:
            raise DemoError(f"{name} ended with {code} on SIGTERM; the end of its log:\n{self.log_tail(name)}")

    def end_all(self):
        """Ends whatever is left, in reverse order of starting. Never raises."""
        left = list(self.running.values())[::-1]
        self.running.clear()
        for process in left:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 5
        for process in left:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            self._kill(process)

    @staticmethod
    def _kill(process):
        try:
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
        except ProcessLookupError:
            pass
        process.wait()
