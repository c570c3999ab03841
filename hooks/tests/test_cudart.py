"""libfreeride_cudart.so between what is linked as torch is and its CUDA runtime (fakes of both): what is tried again, and for how long; which
events are told."""

import json
import subprocess
import sys
import tempfile
import unittest

import support

GIB = 1 << 30
# A process for each: libraries are loaded once and in an order.
SCRIPT = """
import ctypes, json, sys, threading, time
from freeride._hook import hook
folder, order, scenario = sys.argv[1:]
ask_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)

def allocator():
    library = ctypes.CDLL(folder + "/libfake_allocator.so")
    library.fake_allocator_take.argtypes = [ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)]
    return library

if order == "after":
    taker = allocator()
hook._load()
if order == "before":
    taker = allocator()
runtime = ctypes.CDLL("libcudart.so.99")
runtime.fake_cudart_free.argtypes = [ctypes.c_size_t]
runtime.fake_cudart_free(2 << 30)
asked = []

@ask_type
def wanted(context, size):
    asked.append(size)
    if size and scenario == "side task":  # it is gone a little later
        threading.Timer(0.1, runtime.fake_cudart_free, (8 << 30,)).start()
    return 0 if scenario == "no worker" else 1

if scenario != "not attached":
    hook.cudart.library.freeride_cudart_serve(ctypes.cast(wanted, ctypes.c_void_p), None)
left = ctypes.c_int()
def take(size):
    begin = time.monotonic()
    error = taker.fake_allocator_take(size, ctypes.byref(left))
    return [error, left.value, time.monotonic() - begin > 0.5]
told = []
tell_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
recorded, awaited = (tell_type(lambda context, event, stream, what=what: told.append([what, context, event, stream])) for what in ("recorded", "awaited"))
follow = hook.cudart.library.freeride_cudart_follow if hook.cudart.library else lambda *_: None
taker.fake_allocator_follow.argtypes = [ctypes.c_void_p] * 3
follow(ctypes.cast(recorded, ctypes.c_void_p), ctypes.cast(awaited, ctypes.c_void_p), 7)
errors = [taker.fake_allocator_follow(1, 2, 3)]
follow(None, None, None)
errors.append(taker.fake_allocator_follow(1, 2, 3))
somebody = ctypes.CDLL(None)  # code that was linked with no runtime, and has found the first function of that name
found = [somebody.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1)) if hook.cudart.library else 0]
calls = [runtime.fake_cudart_calls(which) for which in range(3)]
print(json.dumps({"found": found, "told": told, "errors": errors, "calls": calls, "small": take(1 << 30), "large": take(5 << 30), "again": take(50 << 30), "and again": take(50 << 30), "asked": asked,
                  "counters": hook.cudart.counters()}))
"""


def run(order, scenario):
    folder = support.BUILD / "fake-cuda"
    with tempfile.TemporaryDirectory() as run_dir:
        env = support.environment(run_dir, LD_LIBRARY_PATH=folder)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(folder), order, scenario],
            env=env,
            capture_output=True,
            text=True,
            timeout=support.WATCHDOG,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Shown(unittest.TestCase):
    def test_nothing_of_its_c_plus_plus_runtime_comes_between_others_and_theirs(self):
        # torch's exceptions were thrown by one runtime and caught by another: "returned NULL without setting an exception".
        library = support.BUILD / "lib/libfreeride_cudart.so"
        shown = subprocess.run(
            ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
        ).stdout
        ours = {"cudaMalloc", "cudaEventRecord", "cudaEventRecordWithFlags", "cudaStreamWaitEvent"}
        ours |= {f"freeride_cudart_{name}" for name in ("counters", "follow", "serve")}
        self.assertEqual({line.split()[-1] for line in shown.splitlines()}, ours)


class Memory(unittest.TestCase):
    def test_what_a_side_task_had_is_there_when_it_has_gone(self):
        got = run("before", "side task")
        self.assertEqual(got["small"][:2], [0, 0])
        self.assertEqual(got["large"][:2], [0, 0])  # and no error is left behind for whoever looks next
        self.assertEqual(got["asked"][:2], [5 * GIB, 0])
        self.assertEqual(got["counters"][1], 1)

    def test_what_nobody_can_free_is_refused_after_a_bounded_time_and_then_at_once(self):
        got = run("before", "side task")
        self.assertEqual(got["again"], [2, 2, True])
        self.assertEqual(got["and again"], [2, 2, False])
        self.assertEqual(got["asked"][2:], [50 * GIB, 0])

    def test_without_a_worker_or_a_hook_nothing_waits(self):
        for scenario in ("no worker", "not attached"):
            got = run("before", scenario)
            self.assertEqual((got["small"], got["large"]), ([0, 0, False], [2, 2, False]))
            self.assertEqual(got["counters"], [0, 0])

    def test_events_are_told_before_they_are_recorded_and_waited_for_as_long_as_somebody_wants_it(self):
        got = run("before", "not attached")
        self.assertEqual(got["told"], [["recorded", 7, 1, 2], ["recorded", 7, 1, 2], ["awaited", 7, 1, 3]])
        self.assertEqual((got["errors"], got["calls"]), ([0, 0], [2, 2, 2]))

    def test_who_was_linked_with_no_runtime_gets_the_one_that_is_there(self):
        self.assertEqual(run("before", "not attached")["found"], [0])

    def test_loaded_too_late_it_changes_nothing(self):
        got = run("after", "side task")
        self.assertEqual((got["told"], got["errors"], got["calls"]), ([], [0, 0], [2, 2, 2]))
        self.assertEqual((got["small"], got["large"], got["asked"]), ([0, 0, False], [2, 2, False], []))


if __name__ == "__main__":
    unittest.main()
