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

import enum
import math
import re
import sys
import traceback
import types

__all__ = ["SideTask", "Param", "Step", "StepAbandoned", "TorchQueue", "TaskError", "Unavailable", "BadParameter"]


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
        """A file in the task's own folder, whose content survives a restart of the task."""
        return f"{self.scratch_dir}/{file}"


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


# ---- for the runner (runner/src/python_plugin.cpp)

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


def _find_class(module):
    found = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, SideTask) and c.__module__ == module.__name__
    ]
    found = [c for c in dict.fromkeys(found) if not any(c is not other and issubclass(other, c) for other in found)]
    if len(found) != 1:
        names = ", ".join(c.__name__ for c in found)
        raise TaskError(
            f"it has {len(found)} classes that inherit SideTask ({names}): leave one"
            if found
            else "it has no class that inherits freeride_plugin.SideTask"
        )
    return found[0]


class _Driver:
    """One task's file, opened. Its methods return a status and let no exception out."""

    def __init__(self, host, file):
        self.host, self.file, self.task, self.error = host, file, None, ""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.reconfigure(line_buffering=True)

    def open(self):
        """Runs the file. Its table as (name, version, summary, ((key, default, help), ...), keeps state, state version), or
        None: then `error` says why."""
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
            return (name, str(self.kind.version), summary, described, keeps, int(self.kind.state_version))
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
        return _ERROR if status == _BAD_PARAMETER else status

    def prepare(self):
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
