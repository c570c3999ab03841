"""GPU memory that training is refused because of side tasks: tried again when they have gone (libfreeride_memory.so).

That library must be there before torch: `python -m freeride.run` and `attach()` before `import torch` see to it. Without it training is
protected by the worker's reserve alone, which one large allocation may exceed.
"""

import ctypes
import os
import sys


class Memory:
    """The library of this process, if it is there."""

    def __init__(self):
        self.library = None

    def preload(self, hook_library):
        """Before torch: its allocator then finds our cudaMalloc. Does nothing afterwards."""
        if self.library is not None or "torch" in sys.modules or os.environ.get("FREERIDE_MEMORY") == "0":
            return
        try:
            library = ctypes.CDLL(
                os.path.join(os.path.dirname(hook_library.path), "libfreeride_memory.so"), mode=ctypes.RTLD_GLOBAL
            )
        except OSError:
            return
        library.freeride_memory_serve.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.freeride_memory_serve.restype = None
        self.library = library

    def serve(self, hook_library, handle):
        """Attached: who is refused memory says so on the rank's page."""
        if self.library is not None:
            self.library.freeride_memory_serve(ctypes.cast(hook_library.want_memory, ctypes.c_void_p), handle)

    def stop(self):
        """Nobody is asked any more: an allocation that fails, fails. For measurements."""
        if self.library is not None:
            self.library.freeride_memory_serve(None, None)

    def counters(self):
        """Allocations that were tried again, and those that then succeeded; None where the library is not loaded."""
        if self.library is None:
            return None
        refused, saved = ctypes.c_uint64(), ctypes.c_uint64()
        self.library.freeride_memory_counters(ctypes.byref(refused), ctypes.byref(saved))
        return refused.value, saved.value
