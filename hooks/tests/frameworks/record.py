"""What the hook marked, in order, and by what it was waited for: taken at its marker's own before_wait(), which is still called."""

_waited_for = {}  # id of a Work -> where its data go
_kept = []  # works: up to torch 2.5 a schedule keeps only the last one of a batch, and gloo loses the message of one that nobody has


def start(marks):
    """Appends to `marks`, for every marked wait, the tensor that the awaited data go to; None for a wait that is no receive. The tensors are
    kept, so that no other one gets the memory of one that the framework has let go of."""
    from torch._C import _distributed_c10d as native

    from freeride._hook import hook

    # Of the class: in another default group the rank has another marker.
    marker = type(hook.marker)
    receive, send, before_wait = native.ProcessGroup.recv, native.ProcessGroup.send, marker.before_wait

    def keeping(self, *args, **kwargs):
        _kept.append(send(self, *args, **kwargs))
        return _kept[-1]

    def noting(self, tensors, *args, **kwargs):
        work = receive(self, tensors, *args, **kwargs)
        _waited_for[id(work)] = (work, tensors[0])  # held, so that no other Work gets its id
        return work

    def marking(self, work):
        marked = before_wait(self, work)
        if marked:
            marks.append(_waited_for.pop(id(work), (None, None))[1])
        return marked

    native.ProcessGroup.recv, native.ProcessGroup.send, marker.before_wait = noting, keeping, marking


def page():
    """This rank's bubble page."""
    from freeride._hook import hook

    return hook.page()
