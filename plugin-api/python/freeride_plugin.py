"""Side tasks in Python: the same states and the same method names as in C++ (freeride/plugin.hpp).

    from freeride_plugin import SideTask, Param, Step

    class Squares(SideTask):
        "Squares of the whole numbers."
        limit = Param(1000, "how far to count", (1, 1_000_000))

        def CreateSideTask(self):
            self.next = 0

        def RunNextStep(self):
            self.metric("square", self.next ** 2)
            self.next += 1
            return Step.FINISHED if self.next == self.limit else Step.MORE

    freeride-ctl plugin check ./squares.py
    freeride-ctl load ./squares.py --stage 3 --python ~/venv/bin/python

All methods are called on the interpreter's main thread, one at a time. Between two calls nobody gets the interpreter's lock:
a thread of the task's own written in Python stands still whenever the task is paused. What a library executes in threads of
its own does not, and must be waited for, as must a GPU (torch.cuda.synchronize()).

This file depends on nothing. The runner carries a copy of its own, so a task always meets the version that its host has; put
plugin-api/python on PYTHONPATH to run a task's class in tests of yours.
"""

import array
import binascii
import collections
import contextlib
import enum
import importlib
import json
import math
import os
import re
import struct
import sys
import threading
import time
import traceback
import types
import zlib

__all__ = [
    "SideTask",
    "Batch",
    "Stream",
    "Param",
    "Step",
    "StepAbandoned",
    "TorchQueue",
    "TaskError",
    "Unavailable",
    "BadParameter",
]


class Step(enum.Enum):
    """What RunNextStep() says. None is MORE."""

    MORE = 0
    FINISHED = 1


class StepAbandoned(BaseException):
    """Thrown by yield_point() when the task is to stop or to save its state in the middle of a step: let it through."""


class TaskError(Exception):
    """Fails a transition for good; its text is one sentence for the user. Any other exception does so too."""


class Unavailable(Exception):
    """Something needed is not there now (a device, a file); trying again later can succeed."""


class BadParameter(Exception):
    """From CreateSideTask: parameters make no sense, alone or together."""


class Param:
    """A parameter, declared in the class: default (which gives the type: bool, int, float or str), help, and what is allowed,
    (least, greatest) for numbers and the words to choose from for text. Reads like a value from CreateSideTask on."""

    def __init__(self, default, help="", allowed=()):
        if type(default) not in (bool, int, float, str):
            raise TypeError("a parameter is a bool, an int, a float or a str")
        self.default, self.help, self.allowed, self.key = default, help, tuple(allowed), None
        if (
            self.allowed
            and not isinstance(default, str)
            and (len(self.allowed) != 2 or self.allowed[1] < self.allowed[0])
        ):
            raise TypeError("allowed is (least, greatest) for numbers")

    def __set_name__(self, owner, name):
        self.key = name

    def __get__(self, task, owner=None):
        return self if task is None else task.__dict__.get(self.key, self.default)

    def text(self):
        return str(int(self.default)) if isinstance(self.default, bool) else str(self.default)

    def parse(self, text):
        kind = type(self.default)
        try:
            if kind is bool:
                value = {
                    "1": True,
                    "true": True,
                    "yes": True,
                    "on": True,
                    "0": False,
                    "false": False,
                    "no": False,
                    "off": False,
                }[text]
            elif kind is float and not math.isfinite(float(text)):
                raise ValueError
            else:
                value = kind(text)
        except (ValueError, KeyError):
            raise BadParameter(f"parameter {self.key}={text}: must be {self.wanted()}") from None
        if self.allowed and (
            value not in self.allowed if kind is str else not self.allowed[0] <= value <= self.allowed[1]
        ):
            raise BadParameter(f"parameter {self.key}={text}: must be {self.wanted()}")
        return value

    def wanted(self):
        kind = type(self.default)
        what = {bool: "0 or 1", int: "a whole number", float: "a number", str: "text"}[kind]
        if not self.allowed:
            return what
        return "one of " + "|".join(self.allowed) if kind is str else f"{what} in {self.allowed[0]}..{self.allowed[1]}"


class SideTask:
    """Inherit; RunNextStep is a must. The docstring's first line is the task's summary, `name` and `version` are optional.
    A task with SaveState() -> bytes and RestoreState(version, bytes) keeps its progress (freeride.state/1)."""

    name = None  # [a-z0-9_-]+; None: the class's in snake_case
    version = "0"
    state_version = 1  # of SaveState's bytes

    def CreateSideTask(self):
        """SUBMITTED -> CREATED. Parameters are set. Load data into host memory here; touch no GPU."""

    def InitSideTask(self):
        """CREATED -> PAUSED. Move the context to the device; return when that is done and nothing executes."""

    def StartSideTask(self):
        """PAUSED -> RUNNING, at the begin of every bubble: keep it short or leave it out."""

    def RunNextStep(self):
        """RUNNING: one short, regular piece of work (aim for 0.5 to 5 ms); return when it is done, on the GPU too."""
        raise TaskError("the class has no RunNextStep()")

    def PauseSideTask(self):
        """RUNNING -> PAUSED, at the end of every bubble: on return nothing of the task executes, no thread and no kernel."""

    def StopSideTask(self):
        """CREATED, PAUSED or RUNNING -> STOPPED. Write results, join threads, give back device memory. Not called after a kill."""

    def PrepareGpuWorkload(self):
        """The imperative interface: what RunGpuWorkload()'s thread has to do for itself before it computes, such as finding kernels
        with a library that keeps them for each thread. Called in that thread, after InitSideTask() and under its lease."""

    def RunGpuWorkload(self):
        """The imperative interface (load --interface imperative): all of the work, in a thread of its own, instead of RunNextStep().
        Call pass_gate() whenever the GPU has done what was launched, at least every millisecond or so. As it is here, it makes the
        steps of the iterative interface."""
        steps = 0
        while self.RunNextStep() is not Step.FINISHED:
            steps += 1
            self.metric("steps", steps)
            self.pass_gate()

    # What the runner sets; the values are for a task that is run by a test of yours.
    task_name, device, scratch_dir = "task", "cpu-0", "."
    _host = None

    @property
    def torch_device(self):
        """The device as PyTorch calls it: a GPU's task sees that GPU alone, as number 0."""
        return "cpu" if self.device.startswith("cpu-") else "cuda:0"

    def log(self, text, level=1):
        """One line into the task's log; level 0 debug, 1 info, 2 warn, 3 error."""
        if self._host:
            self._host["log"](level, str(text))

    def warn(self, text):
        self.log(text, 2)

    def metric(self, name, value):
        """A figure of the task's own, shown by freeride-ctl and on the bus; at most 8 names of at most 23 bytes."""
        if self._host:
            self._host["metric"](name, float(value))

    def yield_point(self, queue=None):
        """Call it between the pieces of a long step, with nothing executing, on the GPU either (torch.cuda.synchronize()).
        Returns at once while the next piece fits the lease, else waits, paused, for a later bubble. Raises StepAbandoned when
        the task is to stop or to save its state instead: RunNextStep may then be called again, and begins a step anew.

        With a queue (TorchQueue) the piece has been queued on a GPU and need not be done: the host stays one piece ahead of the
        GPU, and waits for it only near the lease's end. At the end of a step wait for all, as loss.item() does."""
        if not self._host:
            return
        if queue is not None:
            queue.mark()
        status = self._host["yield_point"]() if queue is None else self._host["yield_queued"](queue.wait)
        if status == _ABANDONED:
            raise StepAbandoned

    def pass_gate(self):
        """The gate of the imperative interface: waits from the end of a bubble until the next one. Raises StepAbandoned when the
        task is to stop: let it through."""
        if self._host and self._host["pass_gate"]() == _ABANDONED:
            raise StepAbandoned

    def scratch_path(self, file):
        """A file in the task's own folder. It is there again after a restart of the task, unless its worker was killed."""
        return f"{self.scratch_dir}/{file}"


class Batch(SideTask):
    """A task for `freeride-ctl batch`: inherit, and write process(). A file with a function process(items) and no class will do.

    class Lengths(Batch):
        def process(self, items):
            return [len(item["prompt"]) for item in items]

    An item is what its line of JSON says, a line of text without its end, or the path of a file. A result is whatever JSON can
    say. How many items come at once is learned from the lengths of leases, up to `most_at_once`. An exception makes the items
    come again one by one; one that fails as often as --retries says goes to the file of failed items, with the reason."""

    most_at_once = 256
    batch = Param("", "the batch's folder in the sandbox: set by freeride-ctl batch")
    _run = None
    _claimed = False

    def metric(self, name, value):
        if not self._claimed:  # before those of the plugin's own take all the places that there are
            self._claimed = True
            for its in ("done", "range", "doing", "failed", "phase"):
                super().metric("batch." + its, 0)
        super().metric(name, value)

    def process(self, items):
        raise TaskError("the class has no process(items)")

    def RunNextStep(self):
        if self._run is None:
            if not self.batch:
                raise TaskError("it is for a batch: freeride-ctl batch FILE --input ITEMS --output RESULTS")
            self._run = _BatchRun(self)
        self._run.step()

    def RunGpuWorkload(self):
        while True:  # its manager stops it
            self.RunNextStep()
            self.pass_gate()


class Stream(Batch):
    """A batch whose items are under way side by side, and come and go one by one: what decodes a token of many sequences in
    a step. Inherit, and write begin() and step(); process() is not called.

    At most `most_at_once` items are under way, and at most `ahead` more are asked for. An exception of begin() is that
    item's. After one of step() all are dropped, and begin anew one by one, so that it is known whose it was."""

    most_at_once = 16
    ahead = 64

    def begin(self, item):
        """Takes an item in; returns its ticket, an object of its own. Little work: step() is where a lease is used."""
        raise TaskError("the class has no begin(item)")

    def step(self):
        """One step of all that are under way. Returns a list of (ticket, result) of those that are done by it."""
        raise TaskError("the class has no step()")

    def drop(self):
        """Nothing is under way any more."""

    def metric(self, name, value):
        if not self._claimed:
            super().metric("batch.wants", self.most_at_once + self.ahead)
        super().metric(name, value)


class _LeaseFit:
    """How many items fit well into a step: a tenth of a short lease, so that little is lost at its end. A pause between two steps was the end of a lease."""

    PAUSE_S, SHARE, LEAST_S, MOST_S = 0.0005, 0.1, 0.0005, 0.01

    def __init__(self):
        self.lengths = collections.deque(maxlen=32)
        self.begin = self.end = 0.0
        self.item_s = 0.0

    def begin_step(self, now):
        if now - self.end > self.PAUSE_S:
            if self.end > self.begin:
                self.lengths.append(self.end - self.begin)
            self.begin = now
        self.step_begin = now

    def end_step(self, now, items):
        self.end = now
        if items:
            each = (now - self.step_begin) / items
            self.item_s = each if self.item_s == 0 else 0.9 * self.item_s + 0.1 * each

    def items(self, most):
        if self.item_s == 0:
            return 1
        now = self.end - self.begin
        short = sorted(self.lengths)[len(self.lengths) // 4] if self.lengths else now
        target = min(max(self.SHARE * max(short, now), self.LEAST_S), self.MOST_S)
        return max(1, min(most, int(target / self.item_s)))


class _Synced:
    """A file of records whose bytes reach the disk on a thread apart, so that no step waits for it."""

    def __init__(self, folder):
        self.path = f"{folder}/part-{os.urandom(8).hex()}"
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        _sync_folder(folder)
        self.on_disk, self.wanted, self.error, self.thread = None, None, None, None
        self.due = 0.0

    def write(self, text):
        while text:
            text = text[os.write(self.fd, text) :]

    def sync(self, mark, now=None):
        """Some time from now on_disk is `mark`, or a later one. With `now`: not too often."""
        self.wanted = mark
        if now is not None and now < self.due:
            return
        if self.thread is not None and self.thread.is_alive():
            return
        self.check()
        if self.on_disk == self.wanted:
            return
        self.due = time.monotonic() + 0.2
        self.thread = threading.Thread(target=self._sync, args=(self.wanted,), daemon=True)
        self.thread.start()

    def _sync(self, mark):
        try:
            os.fdatasync(self.fd)
            self.on_disk = mark
        except OSError as error:
            self.error = error

    def check(self):
        if self.error is not None:
            raise TaskError(f"the results cannot be written to {self.path}: {self.error.strerror}")


def _sync_folder(folder):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _record(item, kind, payload):
    return b"%d %08x %s %s\n" % (item, zlib.crc32(b"%d %s %s" % (item, kind, payload)), kind, payload)


def _read_record(line):
    """(item, kind, payload), or None: half a record, or a damaged one."""
    words = line[:-1].split(b" ", 3)
    if len(words) != 4 or line[-1:] != b"\n":
        return None
    try:
        item = int(words[0])
        good = int(words[1], 16) == zlib.crc32(b"%d %s %s" % (item, words[2], words[3]))
    except ValueError:
        return None
    return (item, words[2], words[3]) if good else None


def _json(value):
    # A lone surrogate becomes the escape that JSON has for it.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


class _BatchRun:
    """One member of a batch. The manager's orders are the file .freeride-work in the scratch folder; what has been done is
    said in metrics (docs/batches.md)."""

    LOOK_S, COUNT_BITS, DOING_BITS = 0.005, 26, 16

    def __init__(self, task):
        self.task, self.folder = task, task.batch
        self.orders_file = task.scratch_path(".freeride-work")
        self.fit = _LeaseFit()
        self.orders_seen, self.looked, self.ranges, self.failures, self.phase = None, -1.0, [], {}, ""
        self.range, self.offset, self.last_number = None, 0, 0
        self.alone_until, self.tries, self.failed, self.shown_tracebacks = 0, 0, 0, 0
        self.out, self.said, self.generator, self.info, self.batch_id = None, None, None, None, None
        self.stream = _StreamRun(self) if isinstance(task, Stream) else None

    # ---- orders
    def look(self, now):
        if now - self.looked < self.LOOK_S:
            return
        self.looked = now
        try:
            status = os.stat(self.orders_file)
            seen = (status.st_ino, status.st_mtime_ns)
            if seen == self.orders_seen:
                return
            with open(self.orders_file, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except OSError:
            return
        self.orders_seen = seen
        self.ranges, self.failures, self.phase, self.batch_id = [], {}, "", None
        for words in (line.split(" ", 3) for line in lines):
            if words[0] == "batch" and len(words) == 2:
                self.batch_id = words[1]
            elif words[0] == "range" and len(words) == 4:
                self.ranges.append(tuple(map(int, words[1:])))
            elif words[0] == "failed" and len(words) == 4:
                self.failures[int(words[1])] = (int(words[2]), words[3])
            elif words[0] in ("assemble", "clear"):
                self.phase = words[0]

    def step(self):
        now = time.perf_counter()
        self.fit.begin_step(now)
        items = self.work(now)
        self.fit.end_step(time.perf_counter(), items)

    def work(self, now):
        """Returns how many items it has handled."""
        self.say_what_is_on_disk(now)
        if self.range is None:
            self.look(now)
            if self.phase:
                self.put_together()
                return 0
            if not self.begin_range():
                time.sleep(0.0003)  # nothing to do: let others have the core
                return 0
        if self.stream is not None:
            self.stream.step()
            return 0
        return self.handle_items()

    def say_what_is_on_disk(self, now):
        if self.out is None:
            return
        if self.out.wanted != self.out.on_disk:
            self.out.sync(self.out.wanted, now)
        self.out.check()
        mark = self.out.on_disk
        if mark is not None and mark != self.said:
            self.said = mark
            if mark[2]:  # with the items that they are of: what is lost with a process is done again, and counted then
                self.task.metric("batch.failed", mark[2])
            self.task.metric("batch.done", (mark[0] << self.COUNT_BITS) + mark[1])

    def begin_range(self):
        following = [one for one in self.ranges if one[0] > self.last_number]
        if not following:
            return False
        self.open()
        self.range, self.offset, self.alone_until = following[0], 0, 0
        if self.stream is not None:
            self.stream.begin_range(self.range[2])
        self.last_number = self.range[0]
        self.task.metric("batch.doing", 0)
        self.task.metric("batch.range", self.range[0])
        return True

    # ---- items
    def open(self):
        if self.info is not None:
            return
        self.info = self.read_info()
        self.index = os.open(f"{self.folder}/index", os.O_RDONLY)
        of_files = self.info["kind"] == "files"
        self.source = os.open(f"{self.folder}/names" if of_files else self.info["input"], os.O_RDONLY)
        status = os.fstat(self.source)
        if not of_files and [status.st_size, status.st_mtime_ns] != [self.info["size"], self.info["mtime_ns"]]:
            raise TaskError("the input has been changed since the batch was submitted: submit it again")
        self.out = _Synced(self.folder)

    def read_info(self):
        """What the folder is for. A manager of an earlier version does not say which batch this is."""
        with open(f"{self.folder}/batch.json", encoding="utf-8") as file:
            info = json.load(file)
        if self.batch_id not in (None, info.get("id")):
            raise TaskError(f"{self.folder} belongs to a later batch of the same output")
        return info

    def items(self, first, count):
        """The items as bytes."""
        bounds = struct.unpack(f"<{2 * count}Q", os.pread(self.index, 16 * count, 16 * first))
        begin = bounds[0]
        data = os.pread(self.source, bounds[-1] - begin, begin)
        if len(data) != bounds[-1] - begin:
            raise TaskError("the input is shorter than when the batch was submitted")
        return [data[bounds[i] - begin : bounds[i + 1] - begin] for i in range(0, 2 * count, 2)]

    def decoded(self, item):
        if self.info["kind"] == "jsonl":
            return json.loads(item)
        if self.info["kind"] == "files":
            return f"{self.info['input']}/{os.fsdecode(item)}"
        return item.decode("utf-8", "surrogateescape")

    def handle_items(self):
        number, first, count = self.range
        most = 1 if self.offset < self.alone_until else self.task.most_at_once
        here = min(self.fit.items(most), count - self.offset)
        at = first + self.offset
        items = self.items(at, here)
        self.task.metric("batch.doing", (self.offset << self.DOING_BITS) + here)
        try:
            asked = [self.decoded(item) for item in items]
            results = self.task.process(asked)
            if not isinstance(results, (list, tuple)) or len(results) != here:
                raise TaskError(f"process() was given {here} items and must return a list of as many results")
            records = [_record(at + i, b"r", _json(result)) for i, result in enumerate(results)]
            self.task.metric("batch.doing", 0)  # what goes wrong from here on is no item's fault
        except TaskError:
            self.task.metric("batch.doing", 0)  # no item's fault
            raise
        except Exception as error:
            records = self.failed_records(at, here, error)
        if records:
            self.write(records)
            self.offset += here
            self.tries = 0
            self.out.sync((number, self.offset, self.failed), None if self.offset == count else time.monotonic())
        if self.offset == count:
            self.range = None
        return here

    def write(self, records):
        try:
            self.out.write(b"".join(records))
        except OSError as error:
            self.task.metric("batch.doing", 0)
            raise TaskError(f"the results cannot be written to {self.folder}: {error.strerror}") from error

    def failed_records(self, at, count, error):
        """The record of an item that has failed for the last time; else nothing: it comes again, alone."""
        if count > 1:
            self.alone_until = max(self.alone_until, self.offset + count)
            return []
        self.tries += 1
        if self.tries < self.info["tries"]:
            return []
        return [self.failed_record(at, error, self.tries)]

    def failed_record(self, at, error, tries):
        reason = f"{type(error).__name__}: {str(error).strip()}".split("\n")[0][:1000]
        if self.shown_tracebacks < 10:
            self.shown_tracebacks += 1
            for line in traceback.format_exception(type(error), error, error.__traceback__):
                self.task.log(f"item {at}: {line.rstrip()}", 2)
        self.failed += 1
        return _record(at, b"f", _json({"reason": reason, "tries": tries}))

    # ---- the end: the output is put together, then the batch's folder is cleared away
    def put_together(self):
        if self.generator is None or self.generator[0] != self.phase:
            self.generator = (self.phase, self.assemble() if self.phase == "assemble" else self.clear())
        if next(self.generator[1], None) is None:
            time.sleep(0.0003)  # done; the manager will say what comes next

    def assemble(self):
        """Every step does a little of it. Written twice it is written the same."""
        marker = f"{self.folder}/assembled"
        try:
            self.read_info()
            with open(marker, encoding="ascii") as file:
                failed = int(file.read())
        except (OSError, ValueError):  # not yet, or half written when the host went down
            self.info = self.read_info()
            failed = yield from self.write_output(marker)
        self.task.metric("batch.failed", failed)
        self.task.metric("batch.phase", 1)

    def parts(self):
        return sorted(f"{self.folder}/{name}" for name in os.listdir(self.folder) if name.startswith("part-"))

    def write_output(self, marker):
        total, parts = self.info["items"], self.parts()
        where, failures = array.array("q", [-1]) * total, {}
        for number, part in enumerate(parts):
            with open(part, "rb") as file:
                begin = 0
                for n, line in enumerate(file):
                    record = _read_record(line)
                    if record is not None and 0 <= record[0] < total and where[record[0]] < 0:
                        if record[1] == b"r":
                            where[record[0]] = (number << 44) + begin
                        elif record[1] == b"f":
                            failures[record[0]] = record[2]
                    begin += len(line)
                    if n % 64 == 63:
                        yield True
        for item, (tries, reason) in self.failures.items():
            failures.setdefault(item, _json({"reason": reason, "tries": tries}))
        failures = {item: failures[item] for item in sorted(failures) if 0 <= item < total and where[item] < 0}
        for item in range(total):
            if where[item] < 0 and item not in failures:
                raise TaskError(f"item {item} has no result in {self.info['output']}.parts, though it was done")
            if item % 1024 == 1023:
                yield True
        target = os.path.dirname(self.folder)
        new = f"{self.folder}/new-{os.urandom(8).hex()}"
        lines = self.in_order(where, parts) if self.info["in_order"] else self.as_committed(where, parts)
        if failures:
            yield from self.write_file(f"{new}-failed", self.failure_lines(failures))
        yield from self.write_file(new, lines)
        if failures:
            os.rename(f"{new}-failed", f"{target}/{self.info['failed']}")
        os.rename(new, f"{target}/{self.info['output']}")
        _sync_folder(target)
        with open(marker, "w", encoding="ascii") as file:
            file.write(str(len(failures)))
        return len(failures)

    def write_file(self, path, lines):
        with open(path, "wb") as file:
            for n, line in enumerate(lines):
                file.write(line)
                if n % 64 == 63:
                    yield True
            file.flush()
            thread = threading.Thread(target=os.fsync, args=(file.fileno(),), daemon=True)
            thread.start()
            while thread.is_alive():
                time.sleep(0.0003)
                yield True
            os.fsync(file.fileno())  # says what went wrong, if anything did

    def line(self, item, key, payload):
        name = b""
        if self.info["kind"] == "files":
            name = b'"item":%s,' % _json(os.fsdecode(self.names(item)))
        return b'{"index":%d,%s%s%s}\n' % (item, name, key, payload)

    def names(self, item):
        if not hasattr(self, "named"):
            with open(f"{self.folder}/names", "rb") as file:
                self.named = file.read().split(b"\0")
        return self.named[item]

    def failure_lines(self, failures):
        for item, payload in failures.items():
            yield self.line(item, b"", payload[1:-1])

    def as_committed(self, where, parts):
        for number, part in enumerate(parts):
            with open(part, "rb") as file:
                begin = 0
                for line in file:
                    record = _read_record(line)
                    if record is not None and record[1] == b"r" and 0 <= record[0] < len(where):
                        if where[record[0]] == (number << 44) + begin:
                            yield self.line(record[0], b'"result":', record[2])
                    begin += len(line)

    def in_order(self, where, parts):
        files = collections.OrderedDict()
        for item, place in enumerate(where):
            if place < 0:
                continue
            number = place >> 44
            if number not in files:
                if len(files) >= 32:
                    files.popitem(last=False)[1].close()
                files[number] = open(parts[number], "rb")  # noqa: SIM115: some stay open
            files[number].seek(place & ((1 << 44) - 1))
            yield self.line(item, b'"result":', _read_record(files[number].readline())[2])
        for file in files.values():
            file.close()

    def clear(self):
        """What says that the output is there goes last."""
        with contextlib.suppress(FileNotFoundError):
            self.read_info()
            names = sorted(os.listdir(self.folder), key=lambda name: (name in ("batch.json", "assembled"), name))
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self.folder}/{name}")
                yield True
            os.rmdir(self.folder)
        self.task.metric("batch.phase", 2)


class _StreamRun:
    """The items of a range that are under way side by side. What is said of them is what a list of items says: how many of
    the first are on disk, and which behind them have been begun. So of those that are done out of turn some may be
    computed twice."""

    def __init__(self, run):
        self.run, self.task = run, run.task
        self.waiting, self.under_way, self.done, self.alone, self.tries = [], {}, set(), set(), {}
        self.begun = 0

    def begin_range(self, count):
        self.waiting = collections.deque(range(count))
        self.under_way, self.done, self.alone, self.tries, self.begun = {}, set(), set(), {}, 0

    def say_doing(self, offset, count):
        self.task.metric("batch.doing", (offset << self.run.DOING_BITS) + count)

    def step(self):
        run = self.run
        number, first, count = run.range
        records = self.take_in(first, count)
        records += self.advance(first)
        if records:
            run.write(records)
        while run.offset in self.done:
            self.done.remove(run.offset)
            run.offset += 1
        if records:
            run.out.sync((number, run.offset, run.failed), None if run.offset == count else time.monotonic())
        if run.offset == count:
            run.range = None

    def take_in(self, first, count):
        """Begins items while there is room; returns the records of those that cannot be begun."""
        run, records = self.run, []
        while self.waiting and len(self.under_way) < max(1, self.task.most_at_once):
            offset = self.waiting[0]
            if self.under_way and (offset in self.alone or next(iter(self.under_way.values())) in self.alone):
                break
            self.waiting.popleft()
            self.begun = max(self.begun, offset + 1)
            if offset in self.alone:
                self.say_doing(offset, 1)
            else:
                self.say_doing(run.offset, min(self.begun - run.offset, (1 << run.DOING_BITS) - 1))
            try:
                ticket = self.task.begin(run.decoded(run.items(first + offset, 1)[0]))
            except TaskError:
                self.task.metric("batch.doing", 0)
                raise
            except Exception as error:
                records += self.failed(first, offset, error)
            else:
                self.under_way[_Ticket(ticket)] = offset
        return records

    def advance(self, first):
        if not self.under_way:
            return []
        try:
            finished = list(self.task.step())
        except TaskError:
            self.task.metric("batch.doing", 0)
            raise
        except Exception as error:
            return self.drop(first, error)
        records = []
        for ticket, result in finished:
            offset = self.under_way.pop(_Ticket(ticket), None)
            if offset is None:
                self.task.metric("batch.doing", 0)
                raise TaskError("step() has returned a ticket that is not under way")
            try:
                records.append(_record(first + offset, b"r", _json(result)))
            except (TypeError, ValueError) as error:
                records += self.failed(first, offset, error)
            else:
                self.done.add(offset)
        return records

    def drop(self, first, error):
        offsets = sorted(self.under_way.values())
        self.under_way = {}
        self.task.drop()
        if len(offsets) == 1:
            return self.failed(first, offsets[0], error)
        self.alone.update(offsets)
        self.waiting.extendleft(reversed(offsets))
        return []

    def failed(self, first, offset, error):
        """The record of an item that has failed for the last time; else nothing: it comes again, alone."""
        tries = self.tries[offset] = self.tries.get(offset, 0) + 1
        if tries < self.run.info["tries"]:
            self.alone.add(offset)
            self.waiting.appendleft(offset)
            return []
        self.done.add(offset)
        return [self.run.failed_record(first + offset, error, tries)]


class _Ticket:
    """A ticket may be anything, also what cannot be hashed: it is known by itself."""

    def __init__(self, ticket):
        self.ticket = ticket

    def __hash__(self):
        return id(self.ticket)

    def __eq__(self, other):
        return self.ticket is other.ticket


class TorchQueue:
    """For yield_point(queue): the current stream of PyTorch. Make it in InitSideTask, with self.torch_device; on a CPU there is nothing to wait for.
    A queue of another library has the same two methods."""

    def __init__(self, device):
        self._events = []
        if device != "cpu":
            import torch

            self._events = [torch.cuda.Event(), torch.cuda.Event()]

    def mark(self):
        """What has been queued so far is a piece."""
        self._events.reverse()
        if self._events:
            self._events[1].record()

    def wait(self, all):
        """Blocks until the last marked piece is done, or without `all` until the one before it is."""
        if self._events:
            self._events[1 if all else 0].synchronize()


# ---- for the file that freeride-ctl makes of a folder (ctl/src/python_package.cpp)


def _package_loader(package, files):
    """Imports a package's modules from a dict of path to bytes. pkgutil.get_data() reads its other files."""
    import importlib.abc  # takes as long as all others together: for packages only
    import importlib.util

    class Loader(importlib.abc.SourceLoader):
        def _path(self, fullname):
            inner = fullname.split(".")[1:]
            for path in ("/".join([*inner, "__init__.py"]), "/".join(inner) + ".py"):
                if path in files:
                    return path
            return None

        def find_spec(self, fullname, path=None, target=None):
            if fullname != package and not fullname.startswith(package + "."):
                return None
            found = self._path(fullname)
            if found is None:
                return None
            spec = importlib.util.spec_from_loader(
                fullname, self, origin=self.get_filename(fullname), is_package=found.endswith("__init__.py")
            )
            spec.has_location = True
            return spec

        def get_filename(self, fullname):
            found = self._path(fullname)
            if found is None:
                raise ImportError(f"the package {package} has no module {fullname}")
            return f"{package}/{found}"

        def get_data(self, path):
            inner = path.replace("\\", "/")
            if inner.startswith(package + "/"):
                inner = inner[len(package) + 1 :]
            try:
                return files[inner]
            except KeyError:
                raise FileNotFoundError(f"the package {package} has no file {inner}") from None

    return Loader()


def open_package(namespace, package, files):
    """Imports a package, given as a dict of path to base64, and puts what it has into `namespace`: a task's file."""
    loader = _package_loader(package, {path: binascii.a2b_base64(text) for path, text in files.items()})
    sys.meta_path.insert(0, loader)
    module = importlib.import_module(package)
    for name, value in vars(module).items():
        if not name.startswith("__"):
            namespace[name] = value
    namespace["__freeride_package__"] = package


# ---- for the runner (runner/src/python_plugin.cpp)

_AT_EDGES = ("StartSideTask", "PauseSideTask")
_OK, _FINISHED, _ABANDONED, _ERROR, _BAD_PARAMETER, _OUT_OF_MEMORY, _UNAVAILABLE = 0, 1, 2, -1, -2, -3, -4


def _one_line(error, file):
    """The error in one line for people: type, first line of its text, where in the task's file."""
    text = str(error).strip().split("\n")[0]
    kind = type(error).__name__
    sentence = (
        text
        if isinstance(error, (TaskError, Unavailable, BadParameter)) and text
        else f"{kind}: {text}"
        if text
        else kind
    )
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    if isinstance(error, BadParameter):
        return sentence
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{sentence} (line {places[-1].lineno})" if places else sentence


def _status(error):
    if isinstance(error, BadParameter):
        return _BAD_PARAMETER
    if isinstance(error, Unavailable):
        return _UNAVAILABLE
    # Every library has a class of its own for it (torch.cuda.OutOfMemoryError), and older ones only a text.
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "out of memory" in str(error):
        return _OUT_OF_MEMORY
    return _ERROR


def _is_of(name, module):
    package = getattr(module, "__freeride_package__", None)
    return name == module.__name__ or (package is not None and (name + ".").startswith(package + "."))


def _find_class(module):
    found = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, SideTask) and _is_of(c.__module__, module)
    ]
    found = [c for c in dict.fromkeys(found) if not any(c is not other and issubclass(other, c) for other in found)]
    if not found and isinstance(vars(module).get("process"), types.FunctionType):
        function = module.process
        return type("Batch", (Batch,), {"process": lambda self, items: function(items), "__doc__": function.__doc__})
    if len(found) != 1:
        names = ", ".join(c.__name__ for c in found)
        raise TaskError(
            f"it has {len(found)} classes that inherit SideTask ({names}): leave one"
            if found
            else "it has no class that inherits freeride_plugin.SideTask, and no function process(items)"
        )
    return found[0]


class _Driver:
    """One task's file, opened. Its methods return a status and let no exception out."""

    def __init__(self, host, file):
        self.host, self.file, self.task, self.error, self.grad = host, file, None, "", None
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.reconfigure(line_buffering=True)

    def open(self):
        """Runs the file. Its table as (name, version, summary, ((key, default, help), ...), keeps state, state version,
        has a StartSideTask of its own, has a PauseSideTask), or None: then `error` says why."""
        try:
            with open(self.file, encoding="utf-8") as file:
                source = file.read()
            module = types.ModuleType("freeride_task")
            module.__file__ = self.file
            sys.modules[module.__name__] = module
            sys.argv = [self.file]
            exec(compile(source, self.file, "exec"), module.__dict__)
            self.kind = _find_class(module)
            self.params = {
                p.key: p for c in reversed(self.kind.__mro__) for p in vars(c).values() if isinstance(p, Param)
            }
            if "python" in self.params:
                raise TaskError("a parameter must not be called 'python': that names the interpreter")
            name = self.kind.name or re.sub(r"(?<=[^A-Z_])(?=[A-Z])", "_", self.kind.__name__).lower()
            summary = (
                (self.kind.__doc__ or "").strip().split("\n")[0] if self.kind.__doc__ is not SideTask.__doc__ else ""
            )
            described = tuple(
                (p.key, p.text(), p.help + (f" ({p.wanted()})" if p.allowed else "")) for p in self.params.values()
            )
            keeps = hasattr(self.kind, "SaveState") and hasattr(self.kind, "RestoreState")
            own = [getattr(self.kind, method) is not getattr(SideTask, method) for method in _AT_EDGES]
            return (name, str(self.kind.version), summary, described, keeps, int(self.kind.state_version), *own)
        except BaseException as error:  # sys.exit() too: nothing may leave the runner's call
            self.error = _one_line(error, self.file)
            if isinstance(error, ImportError):
                self.error += f"; the Python is {sys.executable}"
            self.log_traceback(error)
            return None

    def guard(self, function, *arguments):
        try:
            return self.status_of(function(*arguments))
        except StepAbandoned:
            return _ABANDONED
        except BaseException as error:
            self.host["fail"](_one_line(error, self.file))
            self.log_traceback(error)
            return _status(error)

    @staticmethod
    def status_of(answer):
        if answer is None or answer is Step.MORE:
            return _OK
        if answer is Step.FINISHED:
            return _FINISHED
        raise TaskError(f"it returned {answer!r}: RunNextStep returns Step.MORE, Step.FINISHED or nothing")

    def log_traceback(self, error):
        # What is of this file is no news to the task's author.
        shown = traceback.format_exception(type(error), error, error.__traceback__)
        for line in "".join(shown).splitlines():
            self.host["log"](3, line)

    def create(self, name, device, scratch, params):
        def body():
            task = self.kind.__new__(self.kind)
            task._host, task.task_name, task.device, task.scratch_dir = self.host, name, device, scratch
            for key, text in params:
                task.__dict__[key] = self.params[key].parse(text)
            task.__init__()
            task.CreateSideTask()
            self.task = task

        status = self.guard(body)
        if status == _OK:  # looked up once: a step costs one call
            task = self.task
            for method, call in (
                ("init", task.InitSideTask),
                ("start", task.StartSideTask),
                ("pause", task.PauseSideTask),
                ("stop", task.StopSideTask),
            ):
                setattr(self, method, lambda call=call: self.transition(call))
            self.step = lambda run=task.RunNextStep: self.guard(run)
        return status

    def transition(self, call):
        status = self.guard(lambda: call() and None)
        if torch := sys.modules.get("torch"):
            self.grad = torch.is_grad_enabled()
        return _ERROR if status == _BAD_PARAMETER else status

    def prepare(self):
        # torch keeps it for each thread; what InitSideTask() has set is meant for all of them.
        if self.grad is not None:
            sys.modules["torch"].set_grad_enabled(self.grad)
        return self.transition(self.task.PrepareGpuWorkload)

    def workload(self):
        sys.setswitchinterval(0.0005)  # what a pause waits for the interpreter's lock at most

        def body():
            self.task.RunGpuWorkload()
            return Step.FINISHED

        return self.guard(body)

    def save(self):
        """The state as bytes, or a status."""
        state = []
        status = self.guard(lambda: state.append(bytes(self.task.SaveState())))
        return state[0] if status == _OK else status

    def restore(self, version, state):
        return self.transition(lambda: self.task.RestoreState(version, state))
