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
import os
import sys
import time
import weakref

from . import _library
from ._marks import Marker

_AT_ONCE_NS = 500_000  # between posting and wait: launching a layer takes longer
_SURE = 2  # iterations in a row that it was so
_USABLE_EVERY_NS = 1_000_000_000
_NEVER_NS = 1 << 63


def backend(c10d):
    """The name of what carries the messages of CUDA tensors, "" where nothing does or torch cannot say."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_available():
        return ""
    world = c10d._get_default_group()
    if not hasattr(world, "_get_backend"):
        return ""  # torch 1: its NCCL has no such batches
    try:
        return world._get_backend(torch.device("cuda")).name()
    except RuntimeError:  # no backend for CUDA
        return ""


def wanted(c10d):
    """Is the training's device a GPU, with NCCL? Torch has several classes for it: nccl, nccl2, nccl-lazy. Their queues differ (one for
    each pair of ranks and one for batches, or one for a whole group), and the model check passes with either."""
    return backend(c10d).startswith("nccl")


class Gpu:
    """What the hook asks torch about its streams."""

    KIND = "cuda"  # the device's type, as torch says it

    @contextlib.contextmanager
    def context(self, device):
        torch = sys.modules["torch"]
        with torch.cuda.device(device):
            torch.cuda.current_stream().query()  # the context is this thread's from here on
            yield

    def current(self):
        """The number of this thread's GPU, once training has begun to use GPUs; None: it has not, or not through torch."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is None or torch.version.cuda is None or not cuda.is_initialized():
            return None
        return cuda.current_device()

    def expected(self):
        """May a framework in this process use a GPU later? Without asking the driver, which a process that forks must not."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return (
            ("torch" in sys.modules or "jax" in sys.modules)
            and visible not in ("", "-1")
            and os.path.exists("/proc/driver/nvidia/version")
        )

    def new_stream(self, device):
        return sys.modules["torch"].cuda.Stream(device)

    def follow(self, stream):
        """It goes on from where training's stream is."""
        stream.wait_stream(sys.modules["torch"].cuda.current_stream(stream.device))

    def on(self, stream):
        return sys.modules["torch"].cuda.stream(stream)

    def raw(self, stream):
        return stream.cuda_stream

    def stream(self, device):
        return sys.modules["torch"]._C._cuda_getCurrentRawStream(device)

    def usable_bytes(self, device):
        torch = sys.modules["torch"]
        free, _ = torch.cuda.mem_get_info(device)
        # What the allocator had at its most since the process began, it may want again.
        reserved = torch.cuda.memory_stats_as_nested_dict(device)["reserved_bytes"]["all"]
        return free - (reserved["peak"] - reserved["current"])

    def at_once(self, options):
        """Does training's stream wait for it? For one that runs beside, later or never; an older torch does not say which it is."""
        return getattr(options, "asyncOp", True) is False


class _Posted:
    """A batch that receives: its index in the iteration; where it is posted ahead of its need, the stream for that and the batch's number;
    whether its end is to be told."""

    __slots__ = ("index", "apart", "early", "measured")

    def __init__(self, index):
        self.index, self.apart, self.early, self.measured = index, None, 0, False


class StreamMarker(Marker):
    """Streams mark: where messages are posted, and where training's stream waits for some that were posted early."""

    MEETS = ("batch_isend_irecv", "send", "recv", "broadcast", "allreduce", "reduce")
    STREAMS = True

    def __init__(self, hook, pipelines, gpu):
        self._hook, self._pipelines, self._gpu = hook, pipelines, gpu
        self._attach = None  # what makes the handle, at the first message
        self._attaching = False
        self._device = None  # of the first message
        self._arrays = {}  # tuple of ranks -> (ctypes array, length)
        self._receives = 0  # batches that receive, in this iteration
        self._receives_before = 0  # and in the last one
        self._kinds = {}  # their index -> what was exchanged
        self._waited_at_once = {}  # their index -> iterations in a row, at most _SURE + 1; below 0: it was not
        self._open = None  # (index, ids of its works, when it was posted): posted last, not waited for yet
        self._early = {}  # id of a Work -> (weak reference to it, number of the early batch, all ids of that batch)
        # Process group -> {(source, in a batch): the stream of its early receives}
        self._apart = weakref.WeakKeyDictionary()
        # All streams share a queue to the GPU: one that is held apart would hold up whatever is posted behind it
        self._one_queue = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
        self._paused = False  # for measurements: all ranks, from the same iteration's end on, as if there were no hook
        self._looked_ns = 0  # at the device's free memory
        self._hosts = None  # of ranks elsewhere, if they are to be held for
        self._peers = set()  # ranks that messages were exchanged with, until it is known which are elsewhere
        self._measured = {}  # id of a Work of a batch that is measured -> weak reference to it: ids are used again

    def waiting(self):
        """Nothing sent or received so far."""
        return (self._hook.handle is None or self._hook.alone) and not self._attaching

    def device(self):
        return self._device

    def attach_later(self, attach):
        if not self.waiting():
            return False
        self._attach = attach
        return True

    def _attached(self, device):
        """The handle, made now if need be; None if there is none or the hook is not to be."""
        if self._hook.handle is not None and not self._hook.alone:
            if device.index != self._device:
                raise RuntimeError(
                    f"messages of two devices, cuda:{self._device} and cuda:{device.index}, in one process"
                )
            return self._hook.handle
        if self._attach is None or self._attaching:
            return None
        self._attaching, self._device = True, device.index
        try:
            with self._gpu.context(device):
                attach, self._attach = self._attach, None
                attach()
        finally:
            self._attaching = False
        return self._hook.handle

    def _array(self, ranks):
        found = self._arrays.get(ranks)
        if found is None:
            if len(self._arrays) > 4096:
                self._arrays.clear()
            found = self._arrays[ranks] = ((ctypes.c_uint32 * max(len(ranks), 1))(*ranks), len(ranks))
        return found

    def where(self, posted):
        return self._gpu.on(posted.apart) if posted is not None and posted.apart is not None else super().where(posted)

    def before_messages(self, messages, in_batch):
        """Returns a _Posted, if they receive."""
        self._measured = {}
        if self._paused:
            return None
        destinations, sources, device, of, receive_bytes, types = [], [], None, None, 0, set()
        exchanged = []
        for sends, group, peer, tensor in messages:
            if tensor.device.type != self._gpu.KIND:
                continue
            if not self._pipelines.receives(group, peer):
                self._hook.passed_over()
                continue
            rank = self._pipelines.ranks_of(group)[peer]
            (destinations if sends else sources).append(rank)
            exchanged.append((sends, rank))
            if not sends:
                self._hook.receives_from(rank)
            receive_bytes += 0 if sends else tensor.numel() * tensor.element_size()
            types.add(tensor.dtype)
            device, of = tensor.device, group
        if device is None:
            return None
        handle = self._attached(device)
        if handle is None:
            return None
        to, to_count = self._array(tuple(destinations))
        source, source_count = self._array(tuple(sources))
        behind = self._hook.library.stream_behind(handle, to, to_count, source, source_count)
        self._hook.before_messages(exchanged, others_ended=bool(behind))
        if self._open is not None:  # posted before, and still not waited for
            self._waited_at_once[self._open[0]] = -1
            self._open = None
        if self._hosts is not None and not self._hosts.joined:
            self._peers.update(destinations, sources)
        hold, posted = _library.HOLD_NEVER, None
        if sources:
            posted = _Posted(self._receives)
            self._receives += 1
            self._hook.waits += 1
            self._expect(posted.index, (tuple(sources), tuple(destinations), frozenset(types)))
            score = self._waited_at_once.get(posted.index, 0)
            hold = _library.HOLD if score >= _SURE else _library.HOLD_LATER if score >= 0 else _library.HOLD_NEVER
            if score < 0 and len(messages) == len(sources) and len(set(sources)) == 1 and not self._one_queue:
                self._post_early(handle, posted, sources, self._stream_apart(device, of, sources[0], in_batch))
                return posted
        stream = self._gpu.stream(device.index)
        held = self._hook.library.stream_exchange(
            handle, stream, to, to_count, source, source_count, hold, receive_bytes
        )
        if posted is not None:
            posted.measured = held == _library.HELD_MEASURED
        return posted

    def _expect(self, index, kind):
        """An iteration that agrees on shapes again, as between training and evaluation, has another order than the one that was learned."""
        if self._kinds.setdefault(index, kind) != kind:
            self._kinds[index] = kind
            self._waited_at_once.clear()

    def before_collective(self, group, args, kwargs):
        """If others have to come to it that are other stages, it is a wait."""
        if self._paused or self._hook.handle is None:
            return
        found = self._pipelines.awaited_in_collective(group, args, kwargs)
        if found is None:
            return
        tensors, options, awaited = found
        if not tensors or tensors[0].device.type != self._gpu.KIND or tensors[0].device.index != self._device:
            return
        ranks = self._pipelines.ranks_of(group)
        members, member_count = self._array(tuple(rank for place, rank in enumerate(ranks) if place != group.rank()))
        whom, whom_count = self._array(tuple(ranks[place] for place in awaited))
        self._hook.library.stream_meet(
            self._hook.handle,
            self._gpu.stream(self._device),
            members,
            member_count,
            whom,
            whom_count,
            self._gpu.at_once(options),
        )

    def _post_early(self, handle, posted, sources, apart):
        self._gpu.follow(apart)
        source, source_count = self._array(tuple(sources))
        posted.apart, posted.early = (
            apart,
            self._hook.library.stream_post_early(handle, self._gpu.raw(apart), source, source_count),
        )

    def _stream_apart(self, device, group, source, in_batch):
        """NCCL has a queue for each pair of ranks, and one for the batches of a group: what is held apart must not hold up another queue."""
        of_group = self._apart.setdefault(group, {})
        found = of_group.get((source, in_batch))
        if found is None:
            found = of_group[source, in_batch] = self._gpu.new_stream(device)
        return found

    def after_messages(self, posted, works):
        works = [work for work in (works if isinstance(works, (list, tuple)) else (works,)) if work is not None]
        ids = {id(work) for work in works}
        self._open = (posted.index, ids, time.monotonic_ns())
        self._measured = {id(work): weakref.ref(work) for work in works} if posted.measured else {}
        if posted.early:
            for work in works:
                key = id(work)
                self._early[key] = (weakref.ref(work, lambda _, key=key: self._early.pop(key, None)), posted.early, ids)

    def before_wait(self, work):
        if self._open is not None:
            self._waited(work)
        if self._early:
            self._wait_for_early(work)
        measured = self._measured.get(id(work))
        return measured is not None and measured() is work

    def after_wait(self):
        if not self._paused and self._hook.handle is not None:
            self._hook.library.stream_received(self._hook.handle, self._gpu.stream(self._device))

    def _wait_for_early(self, work):
        """Training's stream is about to wait for what was posted early."""
        try:
            found = self._early.pop(id(work), None)
            if found is None or found[0]() is not work:
                return
            for key in found[2]:  # one wait is for all of a batch
                self._early.pop(key, None)
            if not self._paused and self._hook.handle is not None:
                self._hook.library.stream_wait(self._hook.handle, self._gpu.stream(self._device), found[1])
        except Exception as error:
            self._hook.fail(error)

    def _waited(self, work):
        """A work is waited for: was it of the batch that was posted last, and at once?"""
        index, works, posted_ns = self._open
        score = self._waited_at_once.get(index, 0)
        if id(work) in works and time.monotonic_ns() - posted_ns <= _AT_ONCE_NS:
            self._waited_at_once[index] = min(score + 1, _SURE + 1)
        else:  # late once, where it never was, may be the operating system's doing
            self._waited_at_once[index] = _SURE if id(work) in works and score > _SURE else -1
        self._open = None

    def iteration_end(self, handle, count):
        """In stream order, behind the optimizer's step."""
        if self._paused:
            return None
        if self._receives != self._receives_before:  # an order means nothing from one schedule to another
            self._waited_at_once.clear()
        self._receives, self._receives_before = 0, self._receives
        ended = self._hook.library.stream_count_iterations(handle, self._gpu.stream(self._device), count)
        self._measured = {}
        if self._hosts is not None and not self._hosts.joined:
            self._hosts.iteration_end(self._peers, self._join)
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns > _USABLE_EVERY_NS:
            # A pluggable allocator has no statistics: then it is not known (0), and not asked again.
            usable = self._hook.inform("the device's free memory", self._gpu.usable_bytes, self._device)
            self._looked_ns = now_ns if usable is not None else _NEVER_NS
            self._hook.library.set_usable_bytes(handle, 0 if usable is None else max(usable, 1))
        return ended

    def hold_hosts(self, hosts):
        """Ranks on other hosts are to be held for, once `hosts` (_hosts.Hosts) knows them."""
        self._hosts = hosts

    def stop(self):
        if self._hosts is not None:
            self._hosts.stop()

    def _join(self, key, epoch, peers):
        array = (_library.RemotePeer * len(peers))()
        for at, (rank, address, port) in zip(array, peers):
            at.rank, at.address, at.port = rank, address.encode(), port
        self._hook.library.remote_join(self._hook.handle, key, epoch, array, len(peers))

    def pause(self, paused):
        """For measurements, on all ranks after the same iteration: whether calls go straight through from now on."""
        self._paused, self._open = paused, None
        self._early.clear()
