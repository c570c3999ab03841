"""Side tasks and batches from a program or a notebook, without leaving Python.

    from freeride import client

    for result in client.map("score.py", [{"text": "one"}, {"text": "two"}]):
        print(result)

    task = client.submit("./pagerank.so", stage=1)
    print(task.status().state)
    verdict = task.wait()

Every call is one of freeride-ctl's, which is FREERIDE_CTL's, this installation's own, or the first on the PATH: so keys,
managers on other hosts, its configuration and the checks of whom it talks to are what they are there, and this module
needs nothing but Python's own library. Errors are exceptions, with freeride-ctl's message and hint.

A manager that is being restarted is waited for, up to `patience_s`; nothing is submitted twice by that. A batch belongs
to the manager: it goes on when this program ends, and attach() finds it again.

A Client may be used from several threads. torch is not imported.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from . import _programs

__all__ = [
    "Batch",
    "BatchFailed",
    "BatchStatus",
    "Client",
    "Exists",
    "Failed",
    "FreeRideError",
    "InvalidArgument",
    "ItemFailed",
    "NotFound",
    "PermissionDenied",
    "Rejected",
    "Status",
    "Task",
    "TaskStatus",
    "Unavailable",
    "Verdict",
    "Worker",
    "attach",
    "map",
    "status",
    "submit",
    "task",
    "wait",
]

Path = Union[str, "os.PathLike[str]"]
Json = Any  # what JSON can say
_MARK = "freeride-client"  # label of a submitted task: whose it is, when it is asked twice


# ---- errors


class FreeRideError(Exception):
    """What freeride-ctl says: `message` is what happened, `hint` what to do about it (may be empty), `code` as on the
    wire (bus/WIRE.md)."""

    def __init__(self, message: str, hint: str = "", code: str = "internal"):
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message, self.hint, self.code = message, hint, code


class InvalidArgument(FreeRideError):
    """It can never be right as it is."""


class NotFound(FreeRideError):
    """There is no such task, batch, plugin or file."""


class Exists(FreeRideError):
    """Something of that name is there already."""


class Rejected(FreeRideError):
    """Policy or the plugin's check has refused it."""


class Unavailable(FreeRideError):
    """No manager answers, or not in time."""


class PermissionDenied(FreeRideError):
    """Whoever asks may not do that."""


_KINDS = {
    "invalid_argument": InvalidArgument,
    "not_found": NotFound,
    "already_exists": Exists,
    "rejected": Rejected,
    "unavailable": Unavailable,
    "timeout": Unavailable,
    "permission": PermissionDenied,
}


class BatchFailed(FreeRideError):
    """The batch has failed as a whole: there is no output."""


class ItemFailed(FreeRideError):
    """One item has no result, after all its tries. `index` is its place in the list, `reason` the last try's."""

    def __init__(self, index: int, reason: str, tries: int):
        super().__init__(f"item {index} has failed {tries} times: {reason}", "", "failed")
        self.index, self.reason, self.tries = index, reason, tries


# ---- what is told


@dataclass(frozen=True)
class Verdict:
    """How a task ended. `kind`: finished, stopped, evicted, overran, out_of_memory, crashed, failed, rejected, lost."""

    kind: str
    cause: str
    reason: str

    @property
    def good(self) -> bool:
        return self.kind in ("finished", "stopped")


@dataclass(frozen=True)
class TaskStatus:
    """One look. `state` as in ARCHITECTURE.md; `reason` says why it is where it is; `verdict` once it has ended."""

    name: str
    state: str
    reason: str
    worker: str
    steps: int
    harvested_s: float
    metrics: dict[str, float]
    verdict: Verdict | None
    raw: dict = field(repr=False, compare=False)


@dataclass(frozen=True)
class BatchStatus:
    """One look. `state`: running, assembling, clearing, finished or failed. `failed` counts items."""

    name: str
    state: str
    reason: str
    items: int
    done: int
    failed: int
    members: int
    output: str
    ended: bool
    raw: dict = field(repr=False, compare=False)


@dataclass(frozen=True)
class Failed:
    """In place of a result: an item that has failed (map(..., failed="return"))."""

    index: int
    reason: str
    tries: int


@dataclass(frozen=True)
class Worker:
    name: str
    state: str
    device: str
    job: str
    stage: int


@dataclass(frozen=True)
class Status:
    """The manager, its workers, and how many tasks are in which state."""

    version: str
    workers: list[Worker]
    tasks_by_state: dict[str, int]
    raw: dict = field(repr=False, compare=False)


def _task_status(state: dict) -> TaskStatus:
    counters, verdict = state.get("counters", {}), state.get("verdict", {})
    return TaskStatus(
        name=state["task"],
        state=state["state"],
        reason=state.get("reason", ""),
        worker=state.get("worker", ""),
        steps=counters.get("steps", 0),
        harvested_s=counters.get("harvested_ns", 0) / 1e9,
        metrics=dict(counters.get("metrics", {})),
        verdict=Verdict(verdict["kind"], verdict.get("cause", ""), verdict.get("reason", ""))
        if verdict.get("kind")
        else None,
        raw=state,
    )


def _batch_status(info: dict) -> BatchStatus:
    return BatchStatus(
        name=info["name"],
        state=info["state"],
        reason=info.get("reason", ""),
        items=info["asked"]["items"],
        done=info.get("done", 0),
        failed=info.get("failed", 0),
        members=info.get("members", 0),
        output=info["asked"]["output"],
        ended=info.get("ended_unix_ms", 0) != 0,
        raw=info,
    )


# ---- the program behind it


def _find_program() -> str:
    named = os.environ.get("FREERIDE_CTL")
    if named:
        return named
    found = _programs.find("freeride-ctl")
    if found:
        return found
    raise Unavailable("freeride-ctl is not on the PATH", "install FreeRide, or name the program in FREERIDE_CTL")


def _words(options: Mapping[str, Any]) -> list[str]:
    """Options of freeride-ctl: when_idle=True is --when-idle, read=["a", "b"] is --read a --read b, and a mapping
    (params, env, label) is a KEY=VALUE for each of its entries."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + {"params": "param"}.get(name, name).replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif isinstance(value, Mapping):
            for key, one in value.items():
                words += [flag, f"{key}={int(one) if isinstance(one, bool) else one}"]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for one in value:
                words += [flag, os.fspath(one) if isinstance(one, os.PathLike) else str(one)]
        else:
            words += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return words


def _error_of(text: str, code: int) -> FreeRideError:
    """From the standard error: the last line is the error as JSON, unless the program was ended from outside."""
    for line in reversed(text.splitlines()):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "message" in said:
            kind = _KINDS.get(said.get("code"), FreeRideError)
            return kind(said["message"], said.get("hint", ""), said.get("code", "internal"))
    last = text.strip().splitlines()[-1:] or ["it said nothing"]
    return FreeRideError(f"freeride-ctl ended with {code}: {last[0]}")


class Client:
    """Talks to one manager. `manager` and `key` as with freeride-ctl --manager and --key; left out, the manager of this
    host, or what FREERIDE_… variables and the configuration say. `folder` is where map() keeps lists and results: below a
    --data folder of the workers; left out, FREERIDE_DATA, else the working directory."""

    def __init__(
        self,
        *,
        manager: str | None = None,
        key: Path | None = None,
        run_dir: Path | None = None,
        folder: Path | None = None,
        program: Path | None = None,
        patience_s: float = 60.0,
    ):
        self._program = os.fspath(program) if program else None
        self._globals = _words({"manager": manager, "key": key, "run_dir": run_dir})
        self._folder = folder
        self.patience_s = patience_s

    # ---- side tasks
    def submit(
        self, plugin: Path, *, name: str | None = None, params: Mapping[str, Any] | None = None, **options: Any
    ) -> Task:
        """freeride-ctl load: runs a plugin as a side task. `options` are its options: stage=1, memory="2GiB",
        when_idle=True, python=sys.executable, read=["/data/texts"]. A plugin with '/' in it, and a file that is there, is
        a file; else it is a name from the drop folder."""
        # With a name of its own it is not submitted twice by being asked twice.
        name = name or self._new_name(plugin)
        words = ["load", self._plugin(plugin), "--name", name, *_words({"params": params or {}, **options})]
        made_here = uuid.uuid4().hex
        words += ["--label", f"{_MARK}={made_here}"]
        try:
            self._ask(*words)
        except Exists:
            # Asked again after an answer that was lost: then it is ours.
            if self._label(name) != made_here:
                raise
        return Task(self, name)

    def task(self, name: str) -> Task:
        """A task that is there already."""
        found = Task(self, name)
        found.status()
        return found

    def wait(self, *tasks: Task | str, timeout_s: float | None = None) -> list[Verdict]:
        """Until all of them have ended. Raises TimeoutError."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        verdicts = []
        for one in tasks:
            task = one if isinstance(one, Task) else Task(self, one)
            left = None if end is None else max(0.0, end - time.monotonic())
            verdicts.append(task.wait(left))
        return verdicts

    def status(self) -> Status:
        """The manager and its workers."""
        answer = self._ask("status")
        return Status(
            version=answer["version"],
            workers=[
                Worker(
                    name=one["state"]["worker"],
                    state=one["state"]["state"],
                    device=one["state"]["device"],
                    job=one["state"].get("job", ""),
                    stage=one["state"].get("stage", -1),
                )
                for one in answer.get("workers", [])
            ],
            tasks_by_state={state: int(count) for state, count in answer.get("tasks_by_state", {}).items()},
            raw=answer,
        )

    # ---- batches
    def map(
        self,
        plugin: Path,
        items: Iterable[Json],
        *,
        name: str | None = None,
        failed: str = "raise",
        keep: bool = False,
        progress: Any = None,
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[Json]:
        """The results of process(items) of the plugin, an iterator in the order of the items; each item is whatever JSON can say. The
        batch is submitted at once, and the first result comes when all are done.

        `failed`: an item without a result raises ItemFailed when it is its turn ("raise"), or is a Failed in the place of
        its result ("return"). `progress` is called with a BatchStatus now and then. `keep`: leave the list and the results
        in the folder. `options` are those of freeride-ctl batch: retries=1, memory="2GiB", stage=1, when_idle=True."""
        if failed not in ("raise", "return"):
            raise ValueError("failed is 'raise' or 'return'")
        batch = self.batch(plugin, items, name=name, params=params, **options)
        return self._results_when_done(batch, failed, keep, progress)

    def _results_when_done(self, batch: Batch, failed: str, keep: bool, progress: Any) -> Iterator[Json]:
        try:
            batch.wait(progress=progress)
            yield from batch.results(failed=failed)
        except (BatchFailed, ItemFailed, GeneratorExit):
            if not keep:
                batch.discard()
            raise
        if not keep:
            batch.discard()

    def batch(
        self,
        plugin: Path,
        items: Iterable[Json],
        *,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Batch:
        """Submits a list; returns as soon as the manager has it. As map(), but for whoever wants to come back later."""
        name = name or self._new_name(plugin)
        folder = self._new_folder(name)
        source, output = folder / "items.jsonl", folder / "results.jsonl"
        words = ["batch", self._plugin(plugin), "--input", source, "--output", output, "--name", name]
        words += ["--in-order", "--detach", *_words({"params": params or {}, **options})]
        try:
            if self._write_items(source, items) == 0:
                output.touch()
                return Batch(self, name, folder, empty=True)
            self._submit_batch(words, name, output)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Batch(self, name, folder)

    def attach(self, name: str) -> Batch:
        """A batch that was submitted before, by this program or another one."""
        found = self._batch_status(name)
        return Batch(self, name, pathlib.Path(found.output).parent)

    # ---- how
    @staticmethod
    def _write_items(source: pathlib.Path, items: Iterable[Json]) -> int:
        count = 0
        with open(source, "w", encoding="utf-8") as file:
            for item in items:
                file.write(json.dumps(item, separators=(",", ":")) + "\n")
                count += 1
        return count

    def _submit_batch(self, words: list, name: str, output: pathlib.Path) -> None:
        """Once, whatever becomes of the manager: an answer that was lost is looked for before asking again."""
        end = time.monotonic() + self.patience_s
        while True:
            try:
                self._call(*words)
                return
            except Unavailable:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.5)
            except Exists:
                if not self._is_ours(name, output):
                    raise
                return
            if self._is_ours(name, output):
                return
            # What was begun and not taken: the next try makes it anew.
            shutil.rmtree(f"{output}.parts", ignore_errors=True)

    def _is_ours(self, name: str, output: pathlib.Path) -> bool:
        try:
            return self._batch_status(name).output == str(output)
        except NotFound:
            return False

    def _batch_status(self, name: str) -> BatchStatus:
        for one in self._ask("batch", "ls")["batches"]:
            if one["name"] == name:
                return _batch_status(one)
        raise NotFound(f"there is no batch '{name}'", "freeride-ctl batch ls lists them", "not_found")

    def _label(self, name: str) -> str:
        return self._ask("task", name)["task"].get("load", {}).get("labels", {}).get(_MARK, "")

    def _ask(self, *words: Any) -> dict:
        """Until the manager answers, or patience is at its end."""
        end = time.monotonic() + self.patience_s
        while True:
            try:
                return self._call(*words)
            except Unavailable:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.2)

    def _call(self, *words: Any) -> dict:
        self._program = self._program or _find_program()
        command = [
            self._program,
            "--format",
            "json",
            "--errors",
            "json",
            *self._globals,
            *(str(word) for word in words),
        ]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        except OSError as error:
            raise Unavailable(
                f"{self._program} cannot be started: {error.strerror}", "name it in FREERIDE_CTL"
            ) from None
        if done.returncode != 0:
            raise _error_of(done.stderr, done.returncode)
        try:
            return json.loads(done.stdout) if done.stdout.strip() else {}
        except ValueError:
            raise FreeRideError(
                "freeride-ctl's answer cannot be read", "install client and freeride-ctl of one version"
            ) from None

    @staticmethod
    def _plugin(plugin: Path) -> str:
        text = os.fspath(plugin)
        return f"./{text}" if "/" not in text and os.path.exists(text) else text

    @staticmethod
    def _new_name(plugin: Path) -> str:
        stem = re.sub(r"[^a-z0-9_-]", "-", pathlib.Path(os.fspath(plugin)).name.split(".")[0].lower())[:32].strip("-_")
        return f"{stem or 'task'}-{uuid.uuid4().hex[:8]}"

    def _new_folder(self, name: str) -> pathlib.Path:
        root = pathlib.Path(self._folder or os.environ.get("FREERIDE_DATA") or os.getcwd()).absolute()
        folder = root / f".freeride-{name}-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise InvalidArgument(
                f"{root} cannot hold the list: {error.strerror}",
                "name a folder below a --data folder of the workers: Client(folder=…) or FREERIDE_DATA",
                "invalid_argument",
            ) from None
        return folder


class Task:
    """A side task by its name."""

    def __init__(self, client: Client, name: str):
        self._client, self.name = client, name

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def status(self) -> TaskStatus:
        return _task_status(self._client._ask("task", self.name)["task"]["state"])

    def wait(self, timeout_s: float | None = None) -> Verdict:
        """Until it has ended. Raises TimeoutError."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.1
        while True:
            verdict = self.status().verdict
            if verdict is not None:
                return verdict
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"{self.name} has not ended in {timeout_s} s")
            time.sleep(pause_s if end is None else min(pause_s, max(0.0, end - time.monotonic())))
            pause_s = min(1.0, 1.5 * pause_s)

    def stop(self) -> None:
        self._client._ask("stop", self.name)

    def pause(self) -> None:
        self._client._ask("pause", self.name)

    def resume(self) -> None:
        self._client._ask("resume", self.name)


class Batch:
    """A batch by its name, and the folder that has its list and its results."""

    def __init__(self, client: Client, name: str, folder: pathlib.Path, empty: bool = False):
        self._client, self.name, self.folder, self._empty = client, name, folder, empty

    def __repr__(self) -> str:
        return f"<Batch {self.name}>"

    def status(self) -> BatchStatus:
        if self._empty:
            return BatchStatus(self.name, "finished", "", 0, 0, 0, 0, str(self.folder / "results.jsonl"), True, {})
        return self._client._batch_status(self.name)

    def wait(self, timeout_s: float | None = None, progress: Any = None) -> BatchStatus:
        """Until all items are done. Raises BatchFailed, TimeoutError."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.1
        while True:
            status = self.status()
            if progress is not None:
                progress(status)
            if status.state == "failed":
                raise BatchFailed(
                    f"batch {self.name} has failed: {status.reason}", f"{status.output}.parts is kept", "failed"
                )
            if status.ended:
                return status
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"batch {self.name} has not ended in {timeout_s} s")
            time.sleep(pause_s)
            pause_s = min(1.0, 1.5 * pause_s)

    def results(self, failed: str = "raise") -> Iterator[Json]:
        """Of a batch that has ended, in the order of the items; `failed` as in map(). Reads as it goes."""
        lost = {}
        failures = self.folder / "results.failed.jsonl"
        if failures.exists():
            for line in failures.read_text(encoding="utf-8").splitlines():
                one = json.loads(line)
                lost[one["index"]] = one
        expected = 0
        with open(self.folder / "results.jsonl", encoding="utf-8") as file:
            for line in file:
                one = json.loads(line)
                while expected < one["index"]:
                    yield self._without(lost[expected], failed)
                    expected += 1
                yield one["result"]
                expected += 1
        while expected in lost:
            yield self._without(lost[expected], failed)
            expected += 1

    @staticmethod
    def _without(one: dict, failed: str) -> Failed:
        if failed == "raise":
            raise ItemFailed(one["index"], one["reason"], one["tries"])
        return Failed(one["index"], one["reason"], one["tries"])

    def discard(self) -> None:
        """Forgets the batch, which is stopped if it goes on, and removes its folder."""
        if not self._empty:
            try:
                self._client._ask("batch", "rm", self.name)
            except NotFound:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)


# ---- with the manager of this host


def map(plugin: Path, items: Iterable[Json], **options: Any) -> Iterator[Json]:
    """Client().map()."""
    return Client().map(plugin, items, **options)


def submit(plugin: Path, **options: Any) -> Task:
    """Client().submit()."""
    return Client().submit(plugin, **options)


def task(name: str) -> Task:
    """Client().task()."""
    return Client().task(name)


def attach(name: str) -> Batch:
    """Client().attach()."""
    return Client().attach(name)


def wait(*tasks: Task | str, timeout_s: float | None = None) -> list[Verdict]:
    """Client().wait()."""
    return Client().wait(*tasks, timeout_s=timeout_s)


def status() -> Status:
    """Client().status()."""
    return Client().status()
