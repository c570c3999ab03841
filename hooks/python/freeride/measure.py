"""What measurements and tests need of the hook's inside, under names that stay. No training needs it."""

from . import _cuda
from ._hook import hook
from ._library import CUDA, HOLD, SENT, Config, Library

__all__ = [
    "CUDA",
    "Gpu",
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
    "play",
    "preload",
    "remote_arm",
    "remote_faults",
    "remote_holds",
    "remote_report",
    "unfollow",
    "use",
]

counters, fail, pause = hook.counters, hook.fail, hook.pause
remote_arm, remote_faults, remote_holds = hook.remote_arm, hook.remote_faults, hook.remote_holds
remote_report = hook.remote_report
memory_counters, memory_stop, unfollow = hook.cudart.counters, hook.cudart.stop, hook.cudart.unfollow


Gpu = _cuda.Gpu


def play(gpu):
    """Before attach(): streams mark, and this Gpu is asked about them, whatever device and library the training has."""
    hook.gpu = gpu
    _cuda.wanted = lambda c10d: True


def preload(library):
    """Before torch is imported, for who attaches through `library` by himself: use() then tells the hook of events."""
    hook.cudart.preload(library)


def use(library, handle):
    """Makes a handle that somebody attached through `library` this process's own."""
    hook.library, hook.handle = library, handle
    hook.cudart.follow(library, handle)


def memory_serve():
    """Undoes memory_stop()."""
    hook.cudart.serve(hook.library, hook.handle)
