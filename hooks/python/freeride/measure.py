"""What measurements and tests need of the hook's inside, under names that stay. No training needs it."""

from ._hook import hook
from ._library import CUDA, HOLD, SENT, Config, Library

__all__ = [
    "CUDA",
    "HOLD",
    "SENT",
    "Config",
    "Library",
    "counters",
    "fail",
    "memory_counters",
    "memory_serve",
    "memory_stop",
    "pause",
    "remote_arm",
    "remote_faults",
    "remote_holds",
    "remote_report",
    "two_phase",
    "use",
]

counters, fail, pause, two_phase = hook.counters, hook.fail, hook.pause, hook.two_phase
remote_arm, remote_faults, remote_holds = hook.remote_arm, hook.remote_faults, hook.remote_holds
remote_report = hook.remote_report
memory_counters, memory_stop = hook.memory.counters, hook.memory.stop


def use(library, handle):
    """Makes a handle that somebody attached through `library` this process's own."""
    hook.library, hook.handle = library, handle


def memory_serve():
    """Undoes memory_stop()."""
    hook.memory.serve(hook.library, hook.handle)
