"""torch.distributed over NCCL: where a batch of messages is posted, its streams count, wait and mark (freeride/hook.h, "CUDA streams").

A receive of NCCL that waits spins on the GPU, and Work.wait() only makes one stream wait for another. So a receive that is waited for at
once is held where it is *posted*. One that is posted ahead of its need would hold up what comes between: it is posted on a stream apart,
which is held, and training's stream is held at Work.wait(). Which ones those are is learned, by their order in the iteration: the first two
iterations are never held (in the first, frameworks also exchange shapes), nor two after the number of receives has changed.

`batch_isend_irecv` is met as a whole, by its module's name; single sends and receives, and batches of a function imported before us, at
ProcessGroup's methods. Attached with the first message, since the device is certain only then; from it on both ends count.
"""
import contextlib
import ctypes
import functools
import sys
import threading
import time
import weakref

from . import _hook, _library, _pipeline

_AT_ONCE_NS = 500_000     # between posting and wait: launching a layer takes longer
_SURE = 2                 # iterations in a row that it was so
_USABLE_EVERY_NS = 1_000_000_000

_KIND = "cuda"            # the device's type, as torch says it
_armed = False
_attach = None            # what makes the handle, at the first message
_attaching = False
_device = None            # of the first message
_inside = threading.local()
_ranks_of = weakref.WeakKeyDictionary()  # process group -> world ranks
_arrays = {}              # tuple of ranks -> (ctypes array, length)
_receives = 0             # batches that receive, in this iteration
_receives_before = 0      # and in the last one
_waited_at_once = {}      # their index -> iterations in a row, at most _SURE + 1; below 0: it was not
_open = None              # (index, ids of its works, when it was posted): posted last, not waited for yet
_early = {}               # id of a Work -> (weak reference to it, number of the early batch, all ids of that batch)
_apart = weakref.WeakKeyDictionary()  # process group -> {(source, in a batch): the stream that its early receives are posted on}
_paused = False           # for measurements: all ranks, from the same iteration's end on, as if there were no hook
_looked_ns = 0            # at the device's free memory


def wanted(c10d):
    """Is the training's device a GPU, with NCCL?"""
    torch = sys.modules["torch"]
    if not torch.cuda.is_available():
        return False
    world = c10d._get_default_group()
    if not hasattr(world, "_get_backend"):
        return False  # torch 1: its NCCL has no such batches
    try:
        return world._get_backend(torch.device("cuda")).name() == "nccl"
    except RuntimeError:  # no backend for CUDA
        return False


def waiting():
    """Armed, and nothing sent or received so far."""
    return _armed and _hook._handle is None and not _attaching


def attach_later(attach):
    """Keeps `attach` for the first message. False: this is the first message, or no GPU's training."""
    global _attach
    if not waiting():
        return False
    _attach = attach
    return True


def armed():
    return _armed


def _attached(device):
    """The handle, made now if need be; None if there is none or the hook is not to be."""
    global _attaching, _device, _attach
    if _hook._handle is not None:
        if device.index != _device:
            raise RuntimeError(f"messages of two devices, cuda:{_device} and cuda:{device.index}, in one process")
        return _hook._handle
    if _attach is None or _attaching:
        return None
    _attaching, _device = True, device.index
    try:
        with _context(device):
            attach, _attach = _attach, None
            attach()
    finally:
        _attaching = False
    return _hook._handle


@contextlib.contextmanager
def _context(device):
    torch = sys.modules["torch"]
    with torch.cuda.device(device):
        torch.cuda.current_stream().query()  # the context is this thread's from here on
        yield


def patch(c10d):
    global _armed
    if _armed:
        return
    from torch._C import _distributed_c10d as native
    original_batch = c10d.batch_isend_irecv

    @functools.wraps(original_batch)
    def batch_isend_irecv(p2p_op_list, *args, **kwargs):
        if getattr(_inside, "batch", False):
            return original_batch(p2p_op_list, *args, **kwargs)
        posted = None
        try:
            posted = _before([(op.op.__name__ == "isend", op.group or c10d._get_default_group(), getattr(op, "group_peer", op.peer), op.tensor)
                              for op in p2p_op_list], True)
        except Exception as error:
            _hook.fail(error)
        _inside.batch = True
        try:
            with _where(posted):
                works = original_batch(p2p_op_list, *args, **kwargs)
        finally:
            _inside.batch = False
        if posted is not None:
            _after(posted, works)
        return works

    def single(original, sends):
        @functools.wraps(original)
        def call(self, tensors, peer, *args, **kwargs):
            if getattr(_inside, "batch", False):
                return original(self, tensors, peer, *args, **kwargs)
            posted = None
            try:
                posted = _before([(sends, self, peer, tensors[0])], False)
            except Exception as error:
                _hook.fail(error)
            with _where(posted):
                work = original(self, tensors, peer, *args, **kwargs)
            if posted is not None:
                _after(posted, (work,))
            return work
        return call

    def meeting(original):
        @functools.wraps(original)
        def call(self, *args, **kwargs):
            try:
                _meet(self, args, kwargs)
            except Exception as error:
                _hook.fail(error)
            return original(self, *args, **kwargs)
        return call

    original_wait = native.Work.wait

    @functools.wraps(original_wait)
    def wait(self, *args, **kwargs):
        if _open is not None:
            _waited(self)
        if _early:
            _wait_for_early(self)
        return original_wait(self, *args, **kwargs)

    c10d.batch_isend_irecv = batch_isend_irecv
    package = sys.modules.get("torch.distributed")
    if package is not None and getattr(package, "batch_isend_irecv", None) is original_batch:
        package.batch_isend_irecv = batch_isend_irecv
    native.ProcessGroup.send = single(native.ProcessGroup.send, True)
    native.ProcessGroup.recv = single(native.ProcessGroup.recv, False)
    for name in ("broadcast", "allreduce", "reduce"):
        setattr(native.ProcessGroup, name, meeting(getattr(native.ProcessGroup, name)))
    native.Work.wait = wait
    _hook._stream_iteration_end = _iteration_end
    _armed = True


def _array(ranks):
    found = _arrays.get(ranks)
    if found is None:
        if len(_arrays) > 4096:
            _arrays.clear()
        found = _arrays[ranks] = ((ctypes.c_uint32 * max(len(ranks), 1))(*ranks), len(ranks))
    return found


class _Posted:
    """A batch that receives: its index in the iteration; where it is posted ahead of its need, the stream for that and the batch's number."""
    __slots__ = ("index", "apart", "early")

    def __init__(self, index):
        self.index, self.apart, self.early = index, None, 0


_AS_EVER = contextlib.nullcontext()


def _where(posted):
    return _on(posted.apart) if posted is not None and posted.apart is not None else _AS_EVER


def _before(messages, in_batch):
    """Before messages are posted, each (is a send, group, rank in it, tensor). Returns a _Posted, if they receive."""
    global _receives, _open
    if _paused:
        return None
    destinations, sources, device, of = [], [], None, None
    for sends, group, peer, tensor in messages:
        if tensor.device.type != _KIND or not _pipeline.receives(group, peer):
            continue
        (destinations if sends else sources).append(_ranks(group)[peer])
        device, of = tensor.device, group
    if device is None:
        return None
    handle = _attached(device)
    if handle is None:
        return None
    if _open is not None:  # posted before, and still not waited for
        _waited_at_once[_open[0]] = -1
        _open = None
    hold, posted = _library.HOLD_NEVER, None
    if sources:
        posted = _Posted(_receives)
        _receives += 1
        _hook._waits += 1
        score = _waited_at_once.get(posted.index, 0)
        hold = _library.HOLD if score >= _SURE else _library.HOLD_LATER if score >= 0 else _library.HOLD_NEVER
        if score < 0 and len(messages) == len(sources) and len(set(sources)) == 1:
            _post_early(handle, posted, sources, _stream_apart(device, of, sources[0], in_batch))
            return posted
    stream = _stream(device.index)
    to, to_count = _array(tuple(destinations))
    source, source_count = _array(tuple(sources))
    _hook._library_instance.stream_batch(handle, stream, to, to_count, source, source_count, hold)
    return posted


def _meet(group, args, kwargs):
    """Before a collective: if others have to come to it that are other stages, it is a wait."""
    if _paused or _hook._handle is None or getattr(_inside, "batch", False):
        return
    found = _pipeline.awaited_in_collective(group, args, kwargs)
    if found is None:
        return
    tensors, options, awaited = found
    if not tensors or tensors[0].device.type != _KIND or tensors[0].device.index != _device:
        return
    ranks = _ranks(group)
    members, member_count = _array(tuple(rank for place, rank in enumerate(ranks) if place != group.rank()))
    whom, whom_count = _array(tuple(ranks[place] for place in awaited))
    _hook._library_instance.stream_meet(_hook._handle, _stream(_device), members, member_count, whom, whom_count, _at_once(options))


def _at_once(options):
    """Does training's stream wait for it? For one that runs beside, later or never; an older torch does not say which it is."""
    return getattr(options, "asyncOp", True) is False


def _ranks(group):
    ranks = _ranks_of.get(group)
    if ranks is None:
        ranks = _ranks_of[group] = _pipeline.world_ranks(sys.modules["torch.distributed.distributed_c10d"], group)
    return ranks


def _post_early(handle, posted, sources, apart):
    _follow(apart)
    source, source_count = _array(tuple(sources))
    posted.apart, posted.early = apart, _hook._library_instance.stream_post_early(handle, _raw(apart), source, source_count)


def _stream_apart(device, group, source, in_batch):
    """NCCL has a queue for each pair of ranks, and one for the batches of a group: what is held apart must not hold up another queue."""
    of_group = _apart.setdefault(group, {})
    found = of_group.get((source, in_batch))
    if found is None:
        found = of_group[source, in_batch] = _new_stream(device)
    return found


def _after(posted, works):
    global _open
    works = [work for work in (works if isinstance(works, (list, tuple)) else (works,)) if work is not None]
    ids = {id(work) for work in works}
    _open = (posted.index, ids, time.monotonic_ns())
    if posted.early:
        for work in works:
            key = id(work)
            _early[key] = (weakref.ref(work, lambda _, key=key: _early.pop(key, None)), posted.early, ids)


def _wait_for_early(work):
    """Training's stream is about to wait for what was posted early."""
    try:
        found = _early.pop(id(work), None)
        if found is None or found[0]() is not work:
            return
        for key in found[2]:  # one wait is for all of a batch
            _early.pop(key, None)
        if not _paused and _hook._handle is not None:
            _hook._library_instance.stream_wait(_hook._handle, _stream(_device), found[1])
    except Exception as error:
        _hook.fail(error)


def _waited(work):
    """A work is waited for: was it of the batch that was posted last, and at once?"""
    global _open
    index, works, posted_ns = _open
    score = _waited_at_once.get(index, 0)
    if id(work) in works and time.monotonic_ns() - posted_ns <= _AT_ONCE_NS:
        _waited_at_once[index] = min(score + 1, _SURE + 1)
    else:  # late once, where it never was, may be the operating system's doing
        _waited_at_once[index] = _SURE if id(work) in works and score > _SURE else -1
    _open = None


def _iteration_end(handle):
    """In stream order, behind the optimizer's step."""
    global _receives, _receives_before, _looked_ns
    if _paused:
        return
    if _receives != _receives_before:  # an order means nothing from one schedule to another
        _waited_at_once.clear()
    _receives, _receives_before = 0, _receives
    _hook._library_instance.stream_iteration_end(handle, _stream(_device))
    now_ns = time.monotonic_ns()
    if now_ns - _looked_ns > _USABLE_EVERY_NS:
        _looked_ns = now_ns
        _hook._library_instance.set_usable_bytes(handle, max(_usable_bytes(_device), 1))


def _new_stream(device):
    return sys.modules["torch"].cuda.Stream(device)


def _follow(stream):
    """It goes on from where training's stream is."""
    stream.wait_stream(sys.modules["torch"].cuda.current_stream(stream.device))


def _on(stream):
    return sys.modules["torch"].cuda.stream(stream)


def _raw(stream):
    return stream.cuda_stream


def _stream(device):
    return sys.modules["torch"]._C._cuda_getCurrentRawStream(device)


def _usable_bytes(device):
    torch = sys.modules["torch"]
    free, _ = torch.cuda.mem_get_info(device)
    # What the allocator had at its most since the process began, it may want again.
    reserved = torch.cuda.memory_stats_as_nested_dict(device)["reserved_bytes"]["all"]
    return free - (reserved["peak"] - reserved["current"])


def pause(paused):
    """For measurements, on all ranks after the same iteration: whether calls go straight through from now on."""
    global _paused, _open
    _paused, _open = paused, None
    _early.clear()


def two_phase(least_ms):
    """For measurements: only waits of this length or longer are waited for on the host first."""
    if _hook._handle is not None:
        _hook._library_instance.stream_two_phase(_hook._handle, int(least_ms * 1e6))


def counters():
    """What became of the batches that receive (freeride_stream_counters), as a dictionary; for measurements."""
    result = _library.StreamCounters()
    if _hook._handle is not None:
        _hook._library_instance.stream_counters(_hook._handle, ctypes.byref(result))
    return {name: getattr(result, name) for name, _ in result._fields_}
