"""What a training over NCCL waits for and what the hook makes of it, both in order, by the number of the receiving batch in its iteration.

`waits`: where the framework waits for a batch (noted hooked and unhooked alike, so it is the schedule's own order). `marks`: where the hook
counts a wait, at the calls into its library."""

import torch.distributed as dist
from torch._C import _distributed_c10d as native

NOT_BATCHES = ("stream_meet", "stream_received", "stream_counters")
waits, marks = [], []
_number_of = {}  # id of a Work -> number of its batch
_kept = []  # works, so that no other gets the id of one
_posted = 0  # receiving batches so far in this iteration
_inside = None  # the batch being posted: does it receive?


def start():
    """Before the framework is imported, and in a hooked run after the hook is armed."""
    global _inside
    batch, wait = dist.batch_isend_irecv, native.Work.wait

    def note(works):
        global _posted
        for work in works:
            if work is not None:
                _number_of[id(work)] = _posted
                _kept.append(work)
        _posted += 1

    def posting_batch(ops, *args, **kwargs):
        global _inside
        _inside = False
        works = batch(ops, *args, **kwargs)
        if _inside:
            note(works)
        _inside = None
        return works

    def receiving(original):
        def call(self, *args, **kwargs):
            global _inside
            work = original(self, *args, **kwargs)
            if _inside is None:
                note([work])
            else:
                _inside = True
            return work

        return call

    def waiting(self, *args, **kwargs):
        number = _number_of.get(id(self))
        if number is not None and number not in waits:
            waits.append(number)
        return wait(self, *args, **kwargs)

    dist.batch_isend_irecv = dist.distributed_c10d.batch_isend_irecv = posting_batch
    native.ProcessGroup.recv = receiving(native.ProcessGroup.recv)
    native.Work.wait = waiting


class _Library:
    """The hook's library, listened to."""

    def __init__(self, library):
        self._library, self._receiving, self._early = library, 0, {}

    def __getattr__(self, name):
        if name.startswith("stream_") and name not in NOT_BATCHES:
            raise AttributeError(f"the hook calls {name}, and nothing here listens to it")
        return getattr(self._library, name)

    def stream_exchange(self, handle, stream, to, to_count, source, source_count, *how):
        if source_count:
            marks.append(self._receiving)
            self._receiving += 1
        return self._library.stream_exchange(handle, stream, to, to_count, source, source_count, *how)

    def stream_post_early(self, handle, apart, source, source_count):
        number = self._library.stream_post_early(handle, apart, source, source_count)
        self._early[number] = self._receiving
        self._receiving += 1
        return number

    def stream_wait(self, handle, stream, number):
        marks.append(self._early.pop(number))
        return self._library.stream_wait(handle, stream, number)

    def stream_count_iterations(self, handle, stream, count):
        self._receiving = 0
        return self._library.stream_count_iterations(handle, stream, count)


def listen():
    from freeride._hook import hook

    if not isinstance(hook.library, _Library):
        hook.library = _Library(hook.library)


def take():
    """An iteration's waits and marks."""
    global _posted
    taken = list(waits), list(marks)
    _number_of.clear()
    for kept in (waits, marks, _kept):
        del kept[:]
    _posted = 0
    return taken
