"""A System as tests want it: nothing may be left behind, and a failure shows what everybody said."""

import contextlib
import os
import pathlib
import signal
import sys

from . import system
from .processes import until
from .processors import first_on_the_processors
from .tree import SOURCE, Tree

BUILD = pathlib.Path(os.environ.get("FREERIDE_BUILD_DIR", SOURCE / "build" / "dev"))

__all__ = ["BUILD", "SOURCE", "System", "find_plugin", "until"]


def find_plugin(name):
    """A built plugin or test plugin by file name."""
    return Tree.of_build(BUILD).plugin(name)


class System(system.System):
    """Every process it started is gone when it ends; logs are printed if the test failed. `first`: a context in which
    busy others starve no side task."""

    def __init__(self, build=BUILD, first=first_on_the_processors, env=None, outside_tmp=False):
        super().__init__(Tree.of_build(build), job="gpt", env=env, outside_tmp=outside_tmp)
        self._first, self._entered, self._recorder = first, contextlib.ExitStack(), None

    def __enter__(self):
        self._entered.enter_context(self._first())
        return self

    def __exit__(self, kind, value, trace):
        if self._recorder:
            self._recorder.close()
        self.end_all()
        leftovers = self.runners()
        for log in sorted(self.root.glob("*.log")) if kind else ():
            print(f"---- {log.name}\n{log.read_text(errors='replace')[-6000:]}", file=sys.stderr)
        for pid in leftovers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.close()
        self._entered.close()
        if not kind:
            assert not leftovers, f"runner processes left behind: {leftovers}"

    def start_training(self, stages=4, **options):
        """A smaller one, where the test says nothing else."""
        return super().start_training(stages, **{"dim": 64, "layers": stages, "seq": 64, "micro_batches": 4, **options})

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
                if (
                    str(self.root).encode() in b"\0".join(command)
                    or str(self.root) in (folder / "mountinfo").read_text()
                ):
                    if (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                        found.append(int(folder.name))
        return found

    def listen(self, *prefixes):
        """Keeps events from now on, for seen()."""
        from .events import Recorder

        self._recorder = Recorder(f"ipc://{self.run_dir}/events.sock", *prefixes)

    def seen(self, prefix):
        return [event for topic, event in list(self._recorder.events) if topic.startswith(prefix)]
