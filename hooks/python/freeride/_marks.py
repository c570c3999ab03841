"""What the hook makes of the training's calls: the interface of a marker, and the one for a device whose waits are the host's.

_torch.py meets the calls and tells a marker of each; a marker knows nothing of torch's functions. An error of a marker switches the hook off.
"""

import contextlib
import weakref

_AS_EVER = contextlib.nullcontext()


class Marker:
    """Told of calls before and after they happen; does nothing by itself."""

    MEETS = ()  # the calls it wants to be told of, by name; of waits it is told in any case
    STREAMS = False  # streams of a CUDA context mark

    def waiting(self):
        """Can there be no handle before the first message?"""
        return False

    def attach_later(self, attach):
        """Keeps `attach` for the first message. False: now is the time."""
        return False

    def before_messages(self, messages, in_batch):
        """Before messages are posted, each (is a send, group, rank in it or None, tensor). Returns what where() and after_messages() get; None:
        the latter is not called."""

    def where(self, posted):
        """The context in which they are posted."""
        return _AS_EVER

    def after_messages(self, posted, works):
        """They are posted: one Work, or several."""

    def before_collective(self, group, args, kwargs):
        """Before one of ProcessGroup's methods is called with these arguments."""

    def after_collective(self, group, work, args, kwargs):
        """It was, and returned this Work."""

    def before_wait(self, work):
        """Before Work.wait(). Returns whether after_wait() must be called."""
        return False

    def after_wait(self):
        """It has returned, or raised."""

    def iteration_end(self, handle, count):
        """In the training's thread, with a handle: at least `count` have ended now. Returns how many have; None: nothing is counted."""

    def stop(self):
        """It is told of nothing any more."""


class HostMarker(Marker):
    """The host marks: the waits of the pipeline's receives, where they are waited for, and of small collectives across stages."""

    MEETS = ("send", "recv", "recv_anysource", "broadcast", "allreduce", "reduce", "barrier")

    def __init__(self, hook, pipelines):
        self._hook, self._pipelines = hook, pipelines
        self._noted = {}  # id of a Work -> weak reference to it; an entry lives as long as its Work, or until its wait

    def before_messages(self, messages, in_batch):
        """Returns whether one of them is a receive to be marked."""
        pipelines = self._pipelines
        ours = [
            (sends, pipelines.rank_of(group, peer))
            for sends, group, peer, _ in messages
            if pipelines.receives(group, peer)
        ]
        if not ours:
            return None
        self._hook.pipeline_runs()
        self._hook.before_messages(ours)
        return any(not sends for sends, _ in ours) or None

    def after_messages(self, posted, works):
        self._note(works)

    def after_collective(self, group, work, args, kwargs):
        found = self._pipelines.awaited_in_collective(group, args, kwargs)
        if found is not None and found[2]:
            self._hook.pipeline_runs()
            self._note(work)

    def _note(self, work):
        if work is None:
            return
        key = id(work)
        self._noted[key] = weakref.ref(work, lambda _, key=key: self._noted.pop(key, None))

    def before_wait(self, work):
        return bool(self._noted) and self._noted.pop(id(work), None) is not None and self._hook.begin()

    def after_wait(self):
        self._hook.end()

    def iteration_end(self, handle, count):
        return self._hook.library.count_iterations(handle, None, count)
