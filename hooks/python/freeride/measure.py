"""What measurements and tests need of the hook's inside, under names that stay. No training needs it."""
from . import _hook, _memory
from ._cuda import counters, pause, two_phase
from ._hook import fail
from ._library import CUDA, HOLD, SENT, Config, Library
from ._memory import counters as memory_counters
from ._memory import stop as memory_stop

__all__ = ["CUDA", "HOLD", "SENT", "Config", "Library", "counters", "fail", "memory_counters", "memory_serve", "memory_stop", "pause", "two_phase", "use"]


def use(library, handle):
    """Makes a handle that somebody attached through `library` this process's own."""
    _hook._library_instance, _hook._handle = library, handle


def memory_serve():
    """Undoes memory_stop()."""
    _memory.serve(_hook.library(), _hook._handle)
