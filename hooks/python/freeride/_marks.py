"""What the hook makes of the training's calls: the interface of a marker, and the one for a device whose waits are the host's.

_torch.py meets the calls and tells a marker of each; a marker knows nothing of torch's functions. An error of a marker switches the hook off.
"""

import contextlib
import time
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

    def device(self):
        """The GPU's number whose streams mark; None: the host does, or it is not known yet."""

    def stop(self):
        """It is told of nothing any more."""


class HostMarker(Marker):
    """The host marks: the waits of the pipeline's receives, where they are waited for, and of small collectives across stages."""

    MEETS = ("send", "recv", "recv_anysource", "broadcast", "allreduce", "reduce", "barrier")

    def __init__(self, hook, pipelines, observed=False):
        """observed: waits for sends are measured, and who is received from is told."""
        self._hook, self._pipelines, self._observed = hook, pipelines, observed
        self._noted = {}  # id of a Work -> weak reference to it; an entry lives as long as its Work, or until its wait
        self._sends = {}  # the same of sends
        self._send_began = None  # a wait for a send
        # Waited for the pipeline's sends, in all: gloo waits there for the receiver. Nothing of it is marked
        self.send_ns = 0

    def before_messages(self, messages, in_batch):
        """Returns among which Works that of these messages is kept."""
        pipelines, ours = self._pipelines, []
        for sends, group, peer, _ in messages:
            if not pipelines.receives(group, peer):
                self._hook.passed_over()
                continue
            rank = pipelines.rank_of(group, peer)
            ours.append((sends, rank))
            if self._observed and not sends and rank is not None:
                self._hook.receives_from(rank)
        if not ours:
            return None
        self._hook.pipeline_runs()
        self._hook.before_messages(ours)
        if any(not sends for sends, _ in ours):
            return self._noted
        return self._sends if self._observed else None

    def after_messages(self, posted, works):
        self._keep(posted, works)

    def after_collective(self, group, work, args, kwargs):
        found = self._pipelines.awaited_in_collective(group, args, kwargs)
        if found is not None and found[2]:
            self._hook.pipeline_runs()
            self._keep(self._noted, work)

    @staticmethod
    def _keep(works, work):
        if work is None:
            return
        key = id(work)
        works[key] = weakref.ref(work, lambda _: works.pop(key, None))

    def before_wait(self, work):
        if self._sends and self._sends.pop(id(work), None) is not None:
            self._send_began = time.monotonic_ns()
            return True
        return bool(self._noted) and self._noted.pop(id(work), None) is not None and self._hook.begin()

    def after_wait(self):
        if self._send_began is None:
            self._hook.end()
        else:
            self.send_ns += time.monotonic_ns() - self._send_began
            self._send_began = None

    def iteration_end(self, handle, count):
        return self._hook.library.count_iterations(handle, None, count)
