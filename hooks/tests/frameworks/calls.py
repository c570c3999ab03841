"""The point-to-point calls of a training, as the model check reads them (hooks/tests/model/schedules.txt): `P:s1,r1` posts a batch that sends to
rank 1 and receives from rank 1, `W3` waits for the 4th batch. Ranks are those in the pipeline's group."""

import torch.distributed as dist
from torch._C import _distributed_c10d as native

_calls, _batch_of, _held = [], {}, []
_open = None  # the batch being posted
_batches = 0


def start():
    def posting(original, letter):
        def call(self, tensors, peer, *args, **kwargs):
            global _batches
            work = original(self, tensors, peer, *args, **kwargs)
            if _open is None:
                _calls.append(f"P:{letter}{peer}")
                _batch_of[id(work)] = _batches
                _batches += 1
            else:
                _open.append(f"{letter}{peer}")
                _batch_of[id(work)] = _batches
            _held.append(work)
            return work

        return call

    batch, wait = dist.batch_isend_irecv, native.Work.wait

    def posting_batch(ops):
        global _open, _batches
        _open = []
        works = batch(ops)
        if _open:
            _calls.append("P:" + ",".join(_open))
            _batches += 1
        _open = None
        return works

    def waiting(self, *args, **kwargs):
        index = _batch_of.get(id(self))
        if index is not None and f"W{index}" not in _calls:  # NCCL has one Work for a batch
            _calls.append(f"W{index}")
        return wait(self, *args, **kwargs)

    native.ProcessGroup.send = posting(native.ProcessGroup.send, "s")
    native.ProcessGroup.recv = posting(native.ProcessGroup.recv, "r")
    dist.batch_isend_irecv = posting_batch
    native.Work.wait = waiting


def take():
    """What was called since the last take."""
    global _batches
    taken = _calls[:]
    del _calls[:]
    _batch_of.clear()
    del _held[:]
    _batches = 0
    return taken
