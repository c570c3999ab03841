"""What comes between torch and its CUDA runtime (libfreeride_cudart.so): GPU memory that training is refused because of side tasks is tried
again when they have gone, and the hook learns which streams wait for which.

That library must be there before torch: `python -m freeride.run` and `attach()` before `import torch` see to it. Without it training is
protected by the worker's reserve alone, which one large allocation may exceed, and side tasks have little of a GPU whose waits other streams
share.
"""

import ctypes
import os
import sys


class Cudart:
    """The library of this process, if it is there."""

    def __init__(self):
        self.library = None

    def preload(self, hook_library):
        """Before torch, which then finds our functions. Does nothing afterwards."""
        if self.library is not None or "torch" in sys.modules:
            return
        try:
            library = ctypes.CDLL(
                os.path.join(os.path.dirname(hook_library.path), "libfreeride_cudart.so"), mode=ctypes.RTLD_GLOBAL
            )
        except OSError:
            return
        for function, count in ((library.freeride_cudart_serve, 2), (library.freeride_cudart_follow, 3)):
            function.argtypes, function.restype = [ctypes.c_void_p] * count, None
        self.library = library

    def serve(self, hook_library, handle):
        """Attached: who is refused memory says so on the rank's page."""
        if self.library is not None and os.environ.get("FREERIDE_MEMORY") != "0":
            self.library.freeride_cudart_serve(ctypes.cast(hook_library.want_memory, ctypes.c_void_p), handle)

    def follow(self, hook_library, handle):
        """Attached: the hook is told of events."""
        if self.library is not None:
            told = (hook_library.event_recorded, hook_library.event_awaited)
            self.library.freeride_cudart_follow(*(ctypes.cast(one, ctypes.c_void_p) for one in told), handle)

    def stop(self):
        """Nobody is asked for memory any more: an allocation that fails, fails. For measurements."""
        if self.library is not None:
            self.library.freeride_cudart_serve(None, None)

    def unfollow(self):
        """The hook is told of events no longer. For measurements."""
        if self.library is not None:
            self.library.freeride_cudart_follow(None, None, None)

    def counters(self):
        """Allocations that were tried again, and those that then succeeded; None where the library is not loaded."""
        if self.library is None:
            return None
        refused, saved = ctypes.c_uint64(), ctypes.c_uint64()
        self.library.freeride_cudart_counters(ctypes.byref(refused), ctypes.byref(saved))
        return refused.value, saved.value
