"""The hook's path for NCCL, on a CUDA driver whose streams are threads: what is held, learned and marked, and what is not."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import support
from freeride import _cuda, _hook, _hosts, _library, _status

FAKE = support.BUILD / "fake-cuda/libcuda.so.1"
EXPECTED = [[10 * i + k for i in range(12) for k in range(3)], [x for i in range(12) for x in (i, 0, 1)]]


def pipeline(scenario, per_rank=({}, {}), hosts=False):
    """Both ranks' results and what they wrote to stderr. `hosts`: each on a host of its own, as far as the hook can see."""
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        started = []
        for rank in range(2):
            env = support.environment(
                folder,
                RANK=rank,
                LOCAL_RANK=rank,
                WORLD_SIZE=2,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                FREERIDE_JOB="job",
                FREERIDE_SHM_DIR=folder,
                **per_rank[rank],
            )
            if hosts:
                own = os.path.join(folder, f"host{rank}")
                os.mkdir(own)
                env.update(
                    FREERIDE_SHM_DIR=own, NCCL_HOSTID=f"host{rank}", FREERIDE_HOLD_HOSTS="1", TEST_ITERATIONS="60"
                )
                env.update(per_rank[rank])
            words = [sys.executable, str(support.SOURCE / "hooks/tests/cuda_rank.py"), str(FAKE), scenario]
            started.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        results, errors = [], []
        try:
            for process in started:
                out, error = process.communicate(timeout=support.WATCHDOG)
                errors.append(error)
                if process.returncode != 0:
                    raise AssertionError(f"exit code {process.returncode}: {error[-3000:]}")
                results.append(json.loads(out.splitlines()[-1]))
        finally:
            for process in started:
                process.kill()
        left = [name for name in os.listdir(folder) if name.startswith("freeride-sent")]
        if left:
            raise AssertionError(f"left behind: {left}")
        return results, errors


class Held(unittest.TestCase):
    def check_values(self, results):
        self.assertEqual([result["got"] for result in results], EXPECTED)

    def test_receives_at_their_point_of_use_are_held_and_learned(self):
        results, _ = pipeline("plain")
        self.check_values(results)
        first = results[0]
        self.assertEqual([result["state"] for result in results], ["active", "active"])
        self.assertEqual(first["device"], "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f")
        self.assertEqual((first["waits"], first["iteration"], first["usable_bytes"]), (3, 12, 5 << 30))
        self.assertEqual(first["counters"]["broken"], 0)
        self.assertGreater(first["counters"]["stream"], 0)
        self.assertGreater(max(first["low_ms"]), 3)

    def test_a_batch_function_imported_before_the_hook(self):
        results, _ = pipeline("imported")
        self.check_values(results)

    def test_receives_posted_early_are_held_where_they_are_waited_for(self):
        held = []
        for _ in range(3):  # on a busy machine what is posted early has come before it is waited for
            results, _ = pipeline("early")
            self.check_values(results)
            first = results[0]
            self.assertEqual((first["waits"], first["iteration"], first["counters"]["broken"]), (3, 12, 0))
            # Those that come in a batch with a send are not: the peer may need it first.
            self.assertEqual([ms > 0 for ms in first["low_ms"][:2]], [False, False])
            held.append((first["counters"]["stream"], first["low_ms"][2]))
            if min(held[-1]) > 0:
                return
        self.fail(f"holds and the learned length of the third wait: {held}")

    def test_idle_phases_before_the_pipelines_first_message_and_after_it(self):
        results, errors = pipeline("phases")
        self.check_values(results)
        self.assertEqual(errors, ["", ""])
        for rank, result in enumerate(results):
            self.assertEqual(result["phases"], [[1, rank, "save", 1], [2, 0, "save", 1]])
            self.assertEqual((result["waits"], result["iteration"], result["counters"]["broken"]), (3, 12, 0))
            self.assertGreater(result["phase_ms"], 0)
            self.assertEqual(result["device"], "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f")

    def test_with_one_queue_to_the_gpu_nothing_is_held_apart(self):
        # What is held there would hold up all that is posted behind it.
        results, _ = pipeline("early", ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"},) * 2)
        self.check_values(results)
        self.assertEqual([result["counters"]["stream"] for result in results], [0, 0])

    def test_a_small_collective_across_stages_is_held_until_all_have_come(self):
        learned_ms = []
        for _ in range(3):  # on a busy machine the one that comes 9 ms before the other need not
            results, _ = pipeline("norm", ({"FREERIDE_GROUP": "world"},) * 2)
            self.check_values(results)
            self.assertEqual([result["waits"] for result in results], [4, 4])
            self.assertEqual(results[0]["counters"]["broken"], 0)
            learned_ms.append(results[0]["low_ms"][3])
            if learned_ms[-1] > 3:
                return
        self.fail(f"learned {learned_ms} ms of a wait of 9 ms")

    def test_a_rank_that_skips_optimizer_steps_counts_the_same_iterations(self):
        """As with GradScaler, whose ranks may differ; and a stage without trainable parameters makes none at all."""
        for never in ("", "1"):
            results, errors = pipeline(
                "skips", ({"FREERIDE_GROUP": "world"}, {"FREERIDE_GROUP": "world", "TEST_NEVER": never})
            )
            self.check_values(results)
            self.assertEqual([result["state"] for result in results], ["active", "active"])
            # The last one ends with its first message after it.
            self.assertEqual([result["iteration"] for result in results], [12, 11 if never else 12])
            self.assertEqual([result["counters"]["broken"] for result in results], [0, 0])
            self.assertNotIn("makes no step", errors[0])
            self.assertEqual(errors[1].count("makes no step in some iterations"), 1)

    def test_one_rank_without_the_hook(self):
        results, _ = pipeline("plain", ({}, {"FREERIDE_HOOK": "0"}))
        self.check_values(results)
        self.assertEqual((results[0]["state"], results[1]["state"]), ("active", "off"))
        self.assertEqual(results[0]["counters"]["stream"], 0)

    def test_a_hook_that_fails_in_the_middle(self):
        results, errors = pipeline("fails")
        self.check_values(results)
        self.assertEqual((results[0]["state"], results[1]["state"]), ("active", "disabled"))
        self.assertIn("switched off: RuntimeError: a test", errors[1])


class Measured(unittest.TestCase):
    def test_a_later_work_that_has_got_the_id_of_a_measured_one_is_none(self):
        class Work:
            pass

        marker, posted = _cuda.StreamMarker(None, None, None), _cuda._Posted(0)
        posted.measured = True
        work = Work()
        marker.after_messages(posted, [work])
        self.assertTrue(marker.before_wait(work))
        self.assertTrue(marker.before_wait(work))  # each part of a batch is waited for
        marker._measured[id(marker)] = marker._measured.pop(id(work))  # as if this one had its id now
        self.assertFalse(marker.before_wait(marker))
        marker._paused = True
        marker.before_messages([], False)  # a batch behind it
        self.assertFalse(marker.before_wait(work))


class Learned(unittest.TestCase):
    """What a marker makes of the calls of one rank, with a library that only notes them."""

    def setUp(self):
        self.held, self.said = [], []
        library = types.SimpleNamespace(
            stream_exchange=lambda *arguments: self.held.append(arguments[6]) or 0,
            stream_behind=lambda *_: 0,
            stream_count_iterations=lambda *_: 1,
            idle_phase=lambda _: 0,
            set_usable_bytes=lambda _, usable: self.usable.append(usable),
            why=lambda _: _status.OTHER_GROUPS,
            explain=lambda why: ("other_groups", "name them in FREERIDE_GROUP", why == _status.OTHER_GROUPS),
        )
        self.hook = _hook.Hook()
        self.hook.library, self.hook.handle, self.hook.say = library, 1, self.said.append
        self.usable = []
        gpu = types.SimpleNamespace(KIND="cuda", stream=lambda _: None, usable_bytes=lambda _: 5 << 30)
        everything = types.SimpleNamespace(
            receives=lambda group, peer: True, ranks_of=lambda group: [0, 1], passed_over=False
        )
        self.marker = self.hook.marker = _cuda.StreamMarker(self.hook, everything, gpu)
        self.marker._device, self.gpu = 0, gpu

    def receive(self, dtype):
        device = types.SimpleNamespace(type="cuda", index=0)
        tensor = types.SimpleNamespace(device=device, dtype=dtype, numel=lambda: 1, element_size=lambda: 4)

        class Work:
            pass

        work = Work()
        self.marker.after_messages(self.marker.before_messages([(False, "group", 1, tensor)], False), work)
        self.marker.before_wait(work)

    def iterate(self, *dtypes):
        """How each receive of an iteration is held."""
        for dtype in dtypes:
            self.receive(dtype)
        self.hook.iteration_end()
        held, self.held[:] = self.held[:], []
        return held

    def test_an_iteration_that_agrees_on_shapes_again_is_not_held_by_the_order_of_others(self):
        """torch.distributed.pipelining does so in each change between training and evaluation."""
        later, at_once = _library.HOLD_LATER, _library.HOLD
        self.marker._waited = lambda work: self.learn()
        for expected in (later, later, later, at_once):  # in the first one, frameworks agree on shapes
            self.assertEqual(self.iterate("f32", "f32", "f32"), [expected] * 3)
        self.assertEqual(self.iterate("i64", "u8", "f32", "f32", "f32"), [later] * 5)
        self.assertEqual(self.iterate("f32", "f32", "f32"), [later] * 3)

    def learn(self):
        """That it was waited for at once, on a machine of any load."""
        index, score = self.marker._open[0], self.marker._waited_at_once
        score[index] = score.get(index, 0) + 1
        self.marker._open = None

    def test_memory_that_cannot_be_told_is_not_known_and_training_stays_hooked(self):
        """A pluggable allocator has no statistics."""

        def raises(_):
            raise RuntimeError("MemoryAllocator does not yet support getDeviceStats")

        self.gpu.usable_bytes = raises
        failed, self.hook.fail = [], lambda error: failed.append(error)
        for _ in range(3):
            self.iterate("f32")
        self.assertEqual((failed, self.usable), ([], [0]))
        self.assertEqual(len(self.said), 1)
        self.assertIn("free memory is not known: RuntimeError: MemoryAllocator", self.said[0])

    def test_what_observe_cannot_show_switches_nothing_off(self):
        failed, self.hook.fail = [], lambda error: failed.append(error)
        self.hook.at_iteration_end = lambda: 1 // 0
        self.iterate("f32")
        self.assertEqual(failed, [])
        self.assertIn("ZeroDivisionError", self.said[0])

    def test_messages_that_are_no_pipelines_are_said_to_be_where_no_wait_is_found(self):
        self.hook.pipelines.passed_over = 1
        self.hook._pid = os.getpid()
        for _ in range(2):
            self.hook.iteration_end()
        self.assertIn("FREERIDE_GROUP", self.said[0])
        said = len(self.said)
        self.iterate("f32")
        self.hook.iteration_end()
        self.assertEqual(len(self.said), said)


class Wanted(unittest.TestCase):
    def test_each_class_that_torch_has_for_nccl(self):
        """torch 2.15 makes init_process_group("nccl") one whose name is nccl2."""
        for name, expected in (("nccl", 1), ("nccl2", 1), ("nccl-lazy", 1), ("gloo", 0), ("ucc", 0), (None, 0)):
            self.assertEqual(self.wanted(name), bool(expected), name)

    def wanted(self, name):
        def get_backend(_):
            if name is None:
                raise RuntimeError("No backend type associated with device type cuda")
            return types.SimpleNamespace(name=lambda: name)

        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: True), device=str)
        c10d = types.SimpleNamespace(_get_default_group=lambda: types.SimpleNamespace(_get_backend=get_backend))
        with unittest.mock.patch.dict(sys.modules, torch=torch):
            return _cuda.wanted(c10d)


class Store:
    """As c10d's: compare_set() of nothing sets, and returns what is there."""

    def __init__(self, **values):
        self.values, self.asked, self.dead = values, 0, False

    def compare_set(self, key, expected, desired):
        self.asked += 1
        if self.dead:
            raise RuntimeError("connection reset by peer")
        if self.values.get(key, "") == expected:
            self.values[key] = desired
        return self.values[key].encode()

    def set(self, key, value):
        self.values[key] = value


class Exchanged(unittest.TestCase):
    """What the store says is others' word: whatever it is, training goes on, at worst with nothing held."""

    def exchange(self, other, **values):
        store = Store(**{"freeride/hosts/1": other}, **values)
        hosts, joined = _hosts.Hosts(store, 0, 4711), []
        for _ in range(2):
            hosts.iteration_end({1}, lambda *told: joined.append(told))
        hosts._thread.join(10)
        hosts.iteration_end({1}, lambda *told: joined.append(told))
        hosts.stop()
        return joined, store

    def test_a_peer_on_another_host(self):
        joined, store = self.exchange(json.dumps({"host": "b", "address": "10.0.0.2", "port": 5000}))
        (key, epoch, peers), *_ = joined
        told = store.values["freeride/hosts/key"]
        self.assertEqual((key.hex(), f"{epoch:016x}"), (told[:32], told[32:]))
        self.assertEqual(peers, [(1, "10.0.0.2", 5000)])

    def test_ports_that_are_none_get_no_hints(self):
        for port in (-1, 0, 65536, 2**40, "22", None):
            joined, _ = self.exchange(json.dumps({"host": "b", "address": "10.0.0.2", "port": port}))
            self.assertEqual(joined[0][2], [(1, "10.0.0.2", 0)])

    def test_what_is_no_sense_joins_nobody(self):
        for other in ("{", "[]", "1", '{"host": "b"}'):
            self.assertEqual(self.exchange(other)[0], [])
        other = json.dumps({"host": "b", "address": "10.0.0.2", "port": 5000})
        for key in ("short", "x" * 48):
            self.assertEqual(self.exchange(other, **{"freeride/hosts/key": key})[0], [])

    def test_a_dead_store_and_an_address_that_nobody_knows(self):
        store = Store()
        store.dead = True
        hosts, joined = _hosts.Hosts(store, 0, 4711), []
        for _ in range(4):
            hosts.iteration_end({1}, lambda *told: joined.append(told))
        hosts.stop()
        self.assertEqual(joined, [])
        with unittest.mock.patch.dict(os.environ, {"MASTER_ADDR": "no.such.host.invalid"}):
            self.assertEqual(self.exchange("{}")[0], [])

    def test_a_store_is_asked_seldom_for_who_never_comes(self):
        hosts, waits = _hosts.Hosts(Store(), 0, 4711), []
        hosts._stop.wait = lambda seconds: waits.append(seconds) or len(waits) > 20
        self.assertIsNone(hosts._exchange([1]))
        self.assertEqual((waits[0], waits[-1]), (0.1, 5))


class OnTwoHosts(unittest.TestCase):
    EXPECTED = [[10 * i + k for i in range(60) for k in range(3)], [x for i in range(60) for x in (i, 0, 1)]]

    def check_values(self, results):
        self.assertEqual([result["got"] for result in results], self.EXPECTED)

    def test_waits_for_the_other_host_are_learned_and_held(self):
        seen = []
        for _ in range(3):  # on a busy machine what is played does not take the same time twice
            results, errors = pipeline("hosts", hosts=True)
            self.check_values(results)
            self.assertEqual([result["state"] for result in results], ["active", "active"])
            told = [result["remote"] for result in results]
            self.assertEqual([one["joined"] for one in told], [1, 1], errors)
            self.assertEqual(results[0]["counters"]["stream"], told[0]["held"])  # each hold has ended
            self.assertGreater(told[0]["hints_taken"], 20)
            self.assertEqual(told[0]["hints_refused"], 0)
            seen.append((told[0]["plain_iterations"], told[0]["held"], told[0]["holdable_ns"]))
            if told[0]["plain_iterations"] > 5 and told[0]["held"] > 0:
                self.assertEqual(len(results[0]["holds"]), told[0]["held"])
                return
        self.fail(f"plain iterations, holds, and what could have been held: {seen}")

    def test_without_hints(self):
        results, _ = pipeline("hosts", ({"FREERIDE_HINTS": "0"},) * 2, hosts=True)
        self.check_values(results)
        self.assertEqual([result["remote"]["joined"] for result in results], [1, 1])
        self.assertEqual([result["remote"]["hints_taken"] for result in results], [0, 0])

    def test_off_unless_asked_for_and_with_one_rank_alone(self):
        for alone in ({}, {"FREERIDE_HOLD_HOSTS": "1"}):
            results, _ = pipeline("hosts", (alone, {"FREERIDE_HOLD_HOSTS": "0"}), hosts=True)
            self.check_values(results)
            self.assertEqual([result["remote"]["joined"] for result in results], [0, 0])
            self.assertEqual([result["remote"]["held"] for result in results], [0, 0])

    def test_one_rank_without_the_hook(self):
        results, _ = pipeline("hosts", ({}, {"FREERIDE_HOOK": "0"}), hosts=True)
        self.check_values(results)
        self.assertEqual(results[0]["remote"]["held"], 0)

    def test_a_hook_that_fails_in_the_middle(self):
        results, errors = pipeline("fails", hosts=True)
        self.check_values(results)
        self.assertEqual((results[0]["state"], results[1]["state"]), ("active", "disabled"))
        self.assertIn("switched off: RuntimeError: a test", errors[1])


if __name__ == "__main__":
    unittest.main()
