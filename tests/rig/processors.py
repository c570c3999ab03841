"""Control groups that put what tests start before whatever else the machine does."""

import contextlib
import os
import pathlib


@contextlib.contextmanager
def first_on_the_processors():
    """Within it this process and what it starts go before all others: their control group has the most weight there is.
    So a busy machine starves no side task, and among themselves all is as ever: side tasks get what training leaves.
    Where groups (version 1) cannot be made, as for an ordinary user, it does nothing."""
    paths = {
        name: path
        for _, names, path in (
            line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()
        )
        for name in names.split(",")
    }
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
        # Whoever is left in it (there should be nobody: see TestSystem) keeps the folder, which harms nobody.
        with contextlib.suppress(OSError):
            group.rmdir()
