"""A machine that systemd boots, with this host's files under a layer that is thrown away (boot.sh). Needs root."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from rig.ctl import Ctl
from rig.processes import PATIENCE_S, Failure, until
from rig.system import System

HERE = pathlib.Path(__file__).resolve().parent
SYSTEMD = "/lib/systemd/systemd"


class Machine:
    """Use as a context manager. `shared` of the host is its /shared."""

    def __init__(self):
        if os.geteuid() != 0:
            raise Failure("only root can boot a machine; run this as root")
        if not os.path.exists(SYSTEMD):
            raise Failure(f"{SYSTEMD} is not installed; scripts/install-deps.sh installed installs it")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="freeride-machine-"))
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        self._process = self._init = None

    def __enter__(self):
        with open(self.folder / "console", "wb") as console:
            self._process = subprocess.Popen(
                [HERE / "boot.sh", self.folder], stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
        try:
            until(lambda: self._booted() or self._process.poll() is not None, "the machine boots")
            if self._process.poll() is not None:
                raise Failure(f"the machine does not boot: {self.console()}")
            until(lambda: self.run("systemctl", "is-system-running").stdout.strip() == "running", "all units are up")
        except BaseException:
            self.__exit__()
            raise
        self.ctl = Ctl(self._entered("freeride-ctl"))
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGKILL)  # unshare; the machine's first process follows, and all others that
        self._process.wait()
        for group in pathlib.Path("/sys/fs/cgroup").glob(f"**/freeride-machine-{self._process.pid}"):
            # From the innermost; an ended process leaves its group a little later.
            for folder in sorted((group, *group.rglob("*/")), reverse=True):
                until(lambda folder=folder: _removed(folder), f"{folder} is left by everybody")
        shutil.rmtree(self.folder)

    def console(self):
        return (self.folder / "console").read_text(errors="replace").strip()

    def run(self, *words, check=False):
        """A program of the machine's, in it, as root."""
        done = subprocess.run(
            [*self._words(), *map(str, words)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode != 0:
            raise Failure(f"{' '.join(map(str, words))}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def ok(self, *words):
        return self.run(*words, check=True).stdout.strip()

    def write(self, path, text):
        self.ok("mkdir", "-p", pathlib.Path(path).parent)
        (self.shared / "written").write_text(text)
        self.ok("cp", "/shared/written", path)

    def _words(self):
        return ["nsenter", "--target", self._init, *"-m -p -i -u -n -C -r -w".split(), "--"]

    def _entered(self, program):
        """A file that starts the machine's program of that name."""
        path = self.folder / program
        path.write_text(f'#!/bin/sh\nexec {" ".join(self._words())} {program} "$@"\n')
        path.chmod(0o755)
        return path

    def _booted(self):
        with contextlib.suppress(OSError, IndexError):
            task = f"/proc/{self._process.pid}/task/{self._process.pid}"
            self._init = pathlib.Path(task, "children").read_text().split()[0]
            return pathlib.Path(f"/proc/{self._init}/comm").read_text() == "systemd\n"
        return False


def _removed(folder):
    with contextlib.suppress(OSError):
        if folder.exists():
            folder.rmdir()
    return not folder.exists()


class Installed(System):
    """What a System asks of freeride-ctl, of the one that is installed in a machine."""

    def __init__(self, machine):  # no folders, no processes: systemd has them
        self.machine, self.calls = machine, machine.ctl

    def wait(self, condition, what, seconds=PATIENCE_S):
        return until(condition, what, seconds)
