"""The hook library (C API in freeride/hook.h) through ctypes."""

import ctypes
import ctypes.util
import glob
import os

STARTING, ACTIVE, DISABLED, GONE = 0, 1, 2, 3
SENT, EXTERNAL_MARKS, CUDA = 1, 2, 4
HOLD_NEVER, HOLD, HOLD_LATER = 0, 1, 2
HELD_MEASURED = 3
REACHED, RELEASED, TIMEOUT, NONE = 0, 1, -1, -2


class Config(ctypes.Structure):
    """freeride_hook_config."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("job", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("framework", ctypes.c_char_p),
        ("run_dir", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("stage", ctypes.c_uint32),
        ("stages", ctypes.c_uint32),
        ("replica", ctypes.c_uint32),
        ("replicas", ctypes.c_uint32),
        ("local_rank", ctypes.c_uint32),
    ]

    def __init__(self, **fields):
        super().__init__(**{"struct_size": ctypes.sizeof(Config), "stages": 1, "replicas": 1, **fields})


class StreamCounters(ctypes.Structure):
    """freeride_stream_counters."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("plain", "stream", "broken", "followers")]


class RemotePeer(ctypes.Structure):
    """freeride_remote_peer."""

    _fields_ = [("rank", ctypes.c_uint32), ("port", ctypes.c_uint32), ("address", ctypes.c_char_p)]


class ArmCost(ctypes.Structure):
    """freeride_arm_cost."""

    _fields_ = [("periods", ctypes.c_uint64), ("measured", ctypes.c_uint32), ("reserved0", ctypes.c_uint32)] + [
        (name, ctypes.c_double) for name in ("increase_pct", "ci95_low_pct", "ci95_high_pct")
    ]


class RemoteReport(ctypes.Structure):
    """freeride_remote_report."""

    _fields_ = [
        *[
            (name, ctypes.c_uint64)
            for name in (
                "measured",
                "held",
                "by_hint",
                "by_ceiling",
                "hints_sent",
                "hints_taken",
                "hints_refused",
                "plain_iterations",
                "holdable_ns",
            )
        ],
        ("joined", ctypes.c_uint32),
        ("off", ctypes.c_uint32),
        ("held_cost", ArmCost),
        ("leased_cost", ArmCost),
    ]


class RemoteHold(ctypes.Structure):
    """freeride_remote_hold."""

    _fields_ = [
        ("iteration", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("wait", ctypes.c_uint32),
        ("peer", ctypes.c_uint32),
        *[(name, ctypes.c_int64) for name in ("begin_ns", "ceiling_ns", "hint_ns", "posted_ns")],
    ]


def candidates():
    """Where the library may be, best first: $FREERIDE_HOOK_LIBRARY alone if set; beside this package; newest build of the source
    tree; the system's libraries."""
    named = os.environ.get("FREERIDE_HOOK_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    source = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    builds = glob.glob(os.path.join(glob.escape(source), "build", "*", "lib", "libfreeride_hook.so"))
    builds += glob.glob(os.path.join(glob.escape(source), "build", "lib", "libfreeride_hook.so"))
    # A sanitizer's runtime ends a process that loads it late: never the training's.
    builds = [path for path in builds if not path.split(os.sep)[-3].endswith(("asan", "tsan"))]
    found = [os.path.join(here, "libfreeride_hook.so")]
    if os.path.exists(os.path.join(source, "hooks", "include", "freeride", "hook.h")):  # really our source tree
        found += sorted(builds, key=os.path.getmtime, reverse=True)
    found = [path for path in found if os.path.exists(path)]
    return found + ["libfreeride_hook.so"]


class Library:
    """The loaded library. Raises OSError when there is none, naming every place that was tried."""

    def __init__(self):
        errors = []
        for path in candidates():
            try:
                self._load(path)
                self.path = path
                return
            except (OSError, AttributeError) as error:
                errors.append(f"{path}: {error}")
        raise OSError(
            "libfreeride_hook.so cannot be loaded ("
            + "; ".join(errors)
            + "); build it, or set FREERIDE_HOOK_LIBRARY to its path"
        )

    def _load(self, path):
        # Two views: calls that cannot block keep the interpreter's lock, which is faster than giving it up; the others let go of it. Where a
        # stream is told something, the driver blocks while its queue is full: until the GPU goes on, for which another thread may be needed.
        fast, slow = ctypes.PyDLL(path), ctypes.CDLL(path)
        handle, u32 = ctypes.c_void_p, ctypes.c_uint32

        def bind(library, name, result, *arguments):
            function = getattr(library, "freeride_hook_" + name)
            function.restype, function.argtypes = result, list(arguments)
            return function

        self.attach = bind(slow, "attach", handle, ctypes.POINTER(Config))
        self.detach = bind(slow, "detach", None, handle)
        self.wait_sent = bind(slow, "wait_sent", ctypes.c_int, handle, u32, u32, ctypes.c_int64)
        array = ctypes.POINTER(u32)
        self.stream_batch = bind(
            slow, "stream_batch", ctypes.c_int, handle, ctypes.c_void_p, array, u32, array, u32, ctypes.c_int
        )
        self.stream_exchange = bind(
            slow,
            "stream_exchange",
            ctypes.c_int,
            handle,
            ctypes.c_void_p,
            array,
            u32,
            array,
            u32,
            ctypes.c_int,
            ctypes.c_uint64,
        )
        self.stream_received = bind(slow, "stream_received", None, handle, ctypes.c_void_p)
        self.remote_open = bind(slow, "remote_open", u32, handle, u32)
        peers = ctypes.POINTER(RemotePeer)
        self.remote_join = bind(slow, "remote_join", None, handle, ctypes.c_char_p, ctypes.c_uint64, peers, u32)
        self.remote_report = bind(fast, "remote_report", None, handle, ctypes.POINTER(RemoteReport))
        self.remote_holds = bind(fast, "remote_holds", u32, handle, ctypes.POINTER(RemoteHold), u32)
        self.remote_arm = bind(fast, "remote_arm", None, handle, ctypes.c_int)
        self.remote_faults = bind(fast, "remote_faults", None, handle, ctypes.c_int64, u32, ctypes.c_int, ctypes.c_int)
        self.stream_post_early = bind(slow, "stream_post_early", ctypes.c_uint64, handle, ctypes.c_void_p, array, u32)
        self.stream_wait = bind(slow, "stream_wait", ctypes.c_int, handle, ctypes.c_void_p, ctypes.c_uint64)
        self.stream_meet = bind(
            slow, "stream_meet", ctypes.c_int, handle, ctypes.c_void_p, array, u32, array, u32, ctypes.c_int
        )
        counted = "count_iterations", ctypes.c_uint64, handle, ctypes.c_void_p, ctypes.c_uint64
        self.count_iterations, self.stream_count_iterations = bind(fast, *counted), bind(slow, *counted)
        self.stream_behind = bind(fast, "stream_behind", ctypes.c_int, handle, array, u32, array, u32)
        self.event_recorded = bind(fast, "event_recorded", None, handle, ctypes.c_void_p, ctypes.c_void_p)
        self.event_awaited = bind(slow, "event_awaited", None, handle, ctypes.c_void_p, ctypes.c_void_p)
        self.stream_counters = bind(fast, "stream_counters", None, handle, ctypes.POINTER(StreamCounters))
        self.mark_begin = bind(fast, "mark_begin", None, handle)
        self.mark_end = bind(fast, "mark_end", None, handle)
        self.iteration_end = bind(fast, "iteration_end", None, handle)
        self.disable = bind(fast, "disable", None, handle, ctypes.c_char_p)
        self.fail = bind(fast, "fail", None, handle, ctypes.c_char_p)
        self.enable = bind(slow, "enable", ctypes.c_int, handle)
        self.state = bind(fast, "state", u32, handle)
        self.note = bind(fast, "note", None, handle, u32)
        self.why = bind(fast, "why", u32, handle)
        texts = ctypes.POINTER(ctypes.c_char_p)
        self._explain = bind(fast, "explain", ctypes.c_int, u32, texts, texts)
        self.connected = bind(fast, "connected", ctypes.c_int, handle)
        self.idle_begin = bind(
            slow, "idle_begin", ctypes.c_uint64, handle, ctypes.c_char_p, ctypes.c_int64, u32, ctypes.c_void_p
        )
        self.idle_end = bind(fast, "idle_end", None, handle, ctypes.c_uint64)
        self.idle_phase = bind(fast, "idle_phase", ctypes.c_uint64, handle)
        self.set_usable_bytes = bind(fast, "set_usable_bytes", None, handle, ctypes.c_uint64)
        self.want_memory = bind(slow, "want_memory", ctypes.c_int, handle, ctypes.c_uint64)
        self.page = bind(fast, "page", handle, handle)
        self.produce = bind(fast, "produce", u32, handle, u32)
        self.sent_path = bind(fast, "sent_path", ctypes.c_char_p, handle)

    def explain(self, why):
        """Of a number of the closed set: (its name, its sentence, whether the rank has no usable bubble for it)."""
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        in_the_way = bool(self._explain(why, ctypes.byref(name), ctypes.byref(text)))
        return name.value.decode(), text.value.decode(), in_the_way
