"""The Python SDK's batches, without a runner: what a member makes of its orders, and what it leaves on the disk."""

import json
import pathlib
import struct
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
import freeride_plugin as sdk  # noqa: E402

TURNS = 20_000


class Member:
    """A member with a scratch folder, whose metrics are kept."""

    def __init__(self, tmp_path, process, items, tries=2, in_order=True, number=0):
        self.folder = tmp_path / "out.jsonl.parts"
        self.scratch = tmp_path / f"scratch-{number}"
        self.scratch.mkdir()
        self.metrics = {}
        if not self.folder.exists():
            self.folder.mkdir()
            data, bounds = b"", b""
            for item in items:
                text = json.dumps(item).encode()
                bounds += struct.pack("<2Q", len(data), len(data) + len(text))
                data += text + b"\n"
            (tmp_path / "in.jsonl").write_bytes(data)
            status = (tmp_path / "in.jsonl").stat()
            (self.folder / "index").write_bytes(bounds)
            about = {
                "items": len(items), "kind": "jsonl", "input": str(tmp_path / "in.jsonl"), "size": status.st_size,
                "mtime_ns": status.st_mtime_ns, "tries": tries, "in_order": in_order, "output": "out.jsonl",
                "failed": "out.failed.jsonl",
            }  # fmt: skip
            (self.folder / "batch.json").write_text(json.dumps(about))
        kind = process if isinstance(process, type) else None
        self.task = kind() if kind else type("Task", (sdk.Batch,), {"process": lambda _, items: process(items)})()
        self.task.batch, self.task.scratch_dir = str(self.folder), str(self.scratch)
        self.task._host = {"log": lambda *_: None, "metric": self.metrics.__setitem__}

    def order(self, text):
        new = self.scratch / "new"
        new.write_text(text)
        new.rename(self.scratch / ".freeride-work")

    def run_until(self, there):
        for _ in range(TURNS):
            self.task.RunNextStep()
            if there():
                return
        raise AssertionError(f"not in {TURNS} steps: {self.metrics}")

    def done(self, number, count):
        return lambda: self.metrics.get("batch.done") == (number << 26) + count

    def finish(self):
        self.order("assemble\n")
        self.run_until(lambda: self.metrics.get("batch.phase") == 1)
        output = self.folder.parent / "out.jsonl"
        failed = self.folder.parent / "out.failed.jsonl"
        return [
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            for path in (output, failed)
        ]


def test_ranges_are_done_in_order_and_put_together(tmp_path):
    member = Member(tmp_path, lambda items: [item * 2 for item in items], list(range(100)))
    member.order("range 5 60 40\nrange 6 0 60\n")
    member.run_until(member.done(6, 60))
    results, failed = member.finish()
    assert results == [{"index": n, "result": 2 * n} for n in range(100)] and failed == []
    member.order("clear\n")
    member.run_until(lambda: member.metrics["batch.phase"] == 2)
    assert not member.folder.exists() and (tmp_path / "out.jsonl").exists()


def test_what_is_done_twice_appears_once_and_half_a_record_never(tmp_path):
    first = Member(tmp_path, lambda items: items, list(range(50)), in_order=False)
    first.order("range 1 0 30\n")
    first.run_until(first.done(1, 30))
    part = next(first.folder.glob("part-*"))
    whole = part.read_bytes()
    # As a kill leaves it: the end of the last record is not there, and what was not written is zeros.
    part.write_bytes(whole[:-3])
    (first.folder / "part-zzz").write_bytes(b"\0" * 100 + b"\n" + b"7 00000000 r 9\nnonsense\n" + whole)
    second = Member(tmp_path, lambda items: items, [], number=1)
    second.order("range 2 20 30\n")
    second.run_until(second.done(2, 30))
    results, _ = second.finish()
    assert sorted(one["index"] for one in results) == list(range(50))
    assert all(one["index"] == one["result"] for one in results)


def test_an_exception_costs_only_the_item_that_makes_it(tmp_path):
    seen = []

    def process(items):
        seen.append(list(items))
        if 17 in items:
            raise KeyError("seventeen")
        return items

    member = Member(tmp_path, process, list(range(40)), tries=3)
    member.order("range 1 0 40\n")
    member.run_until(member.done(1, 40))
    assert seen.count([17]) in (3, 4)  # also where it came alone at first
    assert member.metrics["batch.failed"] == 1
    results, failed = member.finish()
    assert [one["index"] for one in results] == [n for n in range(40) if n != 17]
    assert failed == [{"index": 17, "reason": "KeyError: 'seventeen'", "tries": 3}]


def test_an_item_that_the_manager_has_given_up_is_failed_unless_it_has_a_result(tmp_path):
    member = Member(tmp_path, lambda items: items, list(range(3)))
    member.order("range 1 0 2\n")
    member.run_until(member.done(1, 2))
    member.order("failed 2 3 crashed: signal 11\nfailed 1 3 crashed\nassemble\n")
    member.run_until(lambda: member.metrics.get("batch.phase") == 1)
    assert json.loads((tmp_path / "out.failed.jsonl").read_text()) == {
        "index": 2, "reason": "crashed: signal 11", "tries": 3,
    }  # fmt: skip
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


def test_a_missing_record_is_an_error_and_no_output(tmp_path):
    member = Member(tmp_path, lambda items: items, list(range(3)))
    member.order("range 1 0 2\n")
    member.run_until(member.done(1, 2))
    member.order("assemble\n")
    with pytest.raises(sdk.TaskError, match="item 2 has no result"):
        member.run_until(lambda: False)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_second_assembly_leaves_what_the_first_has_made(tmp_path):
    first = Member(tmp_path, lambda items: items, list(range(10)))
    first.order("range 1 0 10\n")
    first.run_until(first.done(1, 10))
    first.finish()
    made = (tmp_path / "out.jsonl").stat().st_ino
    second = Member(tmp_path, lambda items: items, [], number=1)
    second.finish()
    assert (tmp_path / "out.jsonl").stat().st_ino == made


def test_an_input_that_was_changed_is_refused(tmp_path):
    member = Member(tmp_path, lambda items: items, list(range(10)))
    with open(tmp_path / "in.jsonl", "a", encoding="ascii") as file:
        file.write("10\n")
    member.order("range 1 0 10\n")
    with pytest.raises(sdk.TaskError, match="has been changed"):
        member.run_until(lambda: False)


def test_a_wrong_number_of_results_is_the_plugins_fault(tmp_path):
    member = Member(tmp_path, lambda items: items[1:], list(range(10)))
    member.order("range 1 0 10\n")
    with pytest.raises(sdk.TaskError, match="a list of as many results"):
        member.run_until(lambda: False)


def test_items_at_once_follow_the_lease():
    fit = sdk._LeaseFit()
    now = 0.0
    for _ in range(40):  # leases of 8 ms, items of 0.1 ms
        for _ in range(8):
            fit.begin_step(now)
            now += 0.001
            fit.end_step(now, 10)
        now += 0.02
    assert 4 <= fit.items(256) <= 10
    assert fit.items(3) == 3
    for _ in range(200):  # a lease of a second: no step is as long as a tenth of it, which its end would lose
        fit.begin_step(now)
        now += 0.005
        fit.end_step(now, 50)
    assert 80 <= fit.items(256) <= 100


class Countdown(sdk.Stream):
    """An item is [value, steps, what goes wrong]."""

    most_at_once = 8

    def CreateSideTask(self):
        self.running, self.most, self.made = [], 0, []

    def begin(self, item):
        value, steps, wrong = (*item, None)[:3]
        if wrong == "begin":
            raise ValueError(f"{value} cannot begin")
        ticket = [value, steps, wrong]
        self.running.append(ticket)
        self.most = max(self.most, len(self.running))
        return ticket

    def step(self):
        for ticket in self.running:
            ticket[1] -= 1
            if ticket[2] == "step" and ticket[1] <= 1:
                raise KeyError(ticket[0])
        self.made.append([ticket[0] for ticket in self.running])
        done = [ticket for ticket in self.running if ticket[1] <= 0]
        self.running = [ticket for ticket in self.running if ticket[1] > 0]
        return [(ticket, object() if ticket[2] == "result" else 10 * ticket[0]) for ticket in done]

    def drop(self):
        self.running = []


def streaming(tmp_path, items, tries=2, **more):
    member = Member(tmp_path, Countdown, items, tries=tries, **more)
    member.task.CreateSideTask()
    return member


def test_items_of_a_stream_are_under_way_side_by_side_and_done_out_of_turn(tmp_path):
    items = [[n, 1 + (n * 7) % 13] for n in range(60)]
    member = streaming(tmp_path, items)
    member.order("range 1 0 60\n")
    member.run_until(member.done(1, 60))
    assert member.task.most == 8
    assert len(member.task.made) < sum(steps for _, steps in items) / 4
    assert list(member.metrics)[:6] == [
        f"batch.{name}" for name in ("done", "range", "doing", "failed", "phase", "wants")
    ]
    assert member.metrics["batch.wants"] == 72
    results, failed = member.finish()
    assert results == [{"index": n, "result": 10 * n} for n in range(60)] and failed == []


def test_what_is_said_to_be_done_is_done_from_the_first_on(tmp_path):
    member = streaming(tmp_path, [[0, 30], *([n, 1] for n in range(1, 40))])
    member.order("range 1 0 40\n")
    member.run_until(lambda: member.task._run and not member.task._run.stream.waiting and len(member.task.running) == 1)
    assert member.metrics["batch.done"] in (0, 1 << 26)
    assert member.metrics["batch.doing"] == 40
    member.run_until(member.done(1, 40))


def test_an_item_has_failed_once_its_record_is_on_disk_and_not_before(tmp_path):
    def process(items):
        raise KeyError("no")

    member = Member(tmp_path, process, list(range(3)), tries=1)
    synced = []
    original = sdk._Synced._sync
    sdk._Synced._sync = lambda self, mark: synced.append(mark)  # a slow disk
    try:
        member.order("range 1 0 3\n")
        member.run_until(lambda: synced and member.task._run.failed > 0)
        assert member.metrics["batch.failed"] == 0
    finally:
        sdk._Synced._sync = original
    member.run_until(member.done(1, 3))
    assert member.metrics["batch.failed"] == 3


def test_an_exception_in_a_stream_costs_only_the_item_that_makes_it(tmp_path):
    items = [[n, 3 + n % 4] for n in range(40)]
    items[11].append("step")
    items[20].append("begin")
    items[30].append("result")
    member = streaming(tmp_path, items, tries=3)
    member.order("range 1 0 40\n")
    member.run_until(member.done(1, 40))
    assert member.metrics["batch.failed"] == 3
    results, failed = member.finish()
    assert [one["index"] for one in results] == [n for n in range(40) if n not in (11, 20, 30)]
    assert all(one["result"] == 10 * one["index"] for one in results)
    assert [(one["index"], one["tries"]) for one in failed] == [(11, 3), (20, 3), (30, 3)]
    assert failed[0]["reason"] == "KeyError: 11" and failed[1]["reason"] == "ValueError: 20 cannot begin"
    # What came again came alone.
    assert [0] not in member.task.made and [10] in member.task.made and member.task.most == 8


def test_an_item_that_comes_again_alone_is_said_to_be_alone(tmp_path):
    items = [[n, 2] for n in range(8)]
    items[5].append("step")
    member = streaming(tmp_path, items, tries=1000)
    said = []
    member.task._host["metric"] = lambda name, value: (said.append(value) if name == "batch.doing" else None)
    member.order("range 1 0 8\n")
    for _ in range(200):
        member.task.RunNextStep()
    assert (5 << 16) + 1 in said and said[-1] == (5 << 16) + 1


def test_a_streams_ticket_that_nobody_has_is_the_plugins_fault(tmp_path):
    class Wrong(Countdown):
        def step(self):
            return [([], 1)]

    member = Member(tmp_path, Wrong, [[1, 1]])
    member.task.CreateSideTask()
    member.order("range 1 0 1\n")
    with pytest.raises(sdk.TaskError, match="not under way"):
        member.run_until(lambda: False)
