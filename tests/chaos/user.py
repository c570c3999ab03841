"""A user whose side tasks are always there: loads them again when they have ended, as often as it takes, and keeps book
of what became of each."""

import threading
import time

from chaos import judge
from rig.processes import Failure

# What is to be there all the time. Every one writes down its steps.
STANDING = {"first": ("--stage", "0"), "second": ("--stage", "1"), "roams": ()}
STEP_US = 150


class User:
    def __init__(self, system, fault):
        self.system, self._fault = system, fault
        self.names = {}  # of what stands: its present name
        self.accepted, self.perhaps = set(), set()  # names; perhaps: the call was ended in its middle
        self.verdicts, self.calls = {}, {}  # counts; verdicts by kind and cause, calls by exit code
        self.struck = {}  # by task: counts by kind of blow
        self.everywhere = {}  # what strikes every task: counts
        self._judged, self._number = set(), 0
        self._before = {}  # of a task: self.everywhere when it was loaded
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self.plugin = system.tree.plugin("counter.so")

    def begin(self):
        for kind in STANDING:
            self._load_standing(kind)
        self._thread.start()

    # ---- calls
    def call(self, *words, patience_s=5):
        """Whatever becomes of it; but a refusal is a sentence, and the program does not crash."""
        answer = self.system.ctl(*words, timeout=patience_s)
        with self._lock:
            self.calls[answer.code] = self.calls.get(answer.code, 0) + 1
        if answer.code != 0:
            said = answer.err.strip() or answer.out.strip()
            if judge.is_crash(answer.code) or answer.code < 0 or not judge.is_sentence(said.replace("\n", " ")):
                self._fault(f"freeride-ctl {' '.join(map(str, words))}: exit {answer.code}, {said!r}")
        return answer

    def words_of_load(self, name, *flags, finish=0, plugin=None):
        params = {"step_us": STEP_US, "trace": 1, "finish": finish}
        return (
            "load",
            plugin or self.plugin,
            "--name",
            name,
            "--memory",
            "64MiB",
            *flags,
            *(word for key, value in params.items() for word in ("--param", f"{key}={value}")),
        )

    def load(self, name, *flags, finish=0, plugin=None, patience_s=5):
        """True once the manager has it. To be repeated until then: with the same name it is the same task."""
        answer = self.call(*self.words_of_load(name, *flags, finish=finish, plugin=plugin), patience_s=patience_s)
        there = answer.code == 0 or "already" in answer.err
        if there:
            self.accepted.add(name)
            with self._lock:
                self._before.setdefault(name, dict(self.everywhere))
        return there

    def new_name(self, kind):
        self._number += 1
        return f"{kind}-{self._number}"

    def _load_standing(self, kind):
        name = self.names.setdefault(kind, self.new_name(kind))
        return self.load(name, *STANDING[kind])

    def tasks(self):
        """All that are listed, by name; None when nobody answers."""
        answer = self.call("tasks")
        return {task["load"]["name"]: task["state"] for task in answer.json["tasks"]} if answer.code == 0 else None

    def strike(self, what, task=None):
        with self._lock:
            if task is None:
                self.everywhere[what] = self.everywhere.get(what, 0) + 1
            else:
                mine = self.struck.setdefault(task, {})
                mine[what] = mine.get(what, 0) + 1

    def _explained_by(self, name):
        with self._lock:
            before, mine = self._before.get(name, {}), dict(self.struck.get(name, {}))
            for what, count in self.everywhere.items():
                mine[what] = mine.get(what, 0) + count - before.get(what, 0)
        return mine

    def judge_ended(self, tasks):
        for name, state in tasks.items():
            verdict = state["verdict"]
            if not verdict["kind"] or name in self._judged:
                continue
            self._judged.add(name)
            key = f"{verdict['kind']}, {verdict.get('cause') or 'no cause'}"
            self.verdicts[key] = self.verdicts.get(key, 0) + 1
            struck = self._explained_by(name)
            if not judge.explains(verdict, struck):
                self._fault(f"{name} ended without anything having been done to it ({struck}): {verdict}")
            said = verdict.get("reason") or verdict.get("message") or ""
            if verdict["kind"] not in ("finished", "stopped") and not judge.is_sentence(said):
                self._fault(f"the verdict of {name} is no sentence: {said!r}")

    # ---- a life
    def _live(self):
        short, due = None, 0.0
        while not self._stop.wait(0.5):
            try:
                tasks = self.tasks()
                if tasks is None:
                    continue
                self.judge_ended(tasks)
                for kind, name in list(self.names.items()):
                    state = tasks.get(name)
                    if state is None:
                        if name in self.accepted:
                            self._fault(f"{name} was accepted, and is not listed any more")
                            self.names[kind] = self.new_name(kind)
                        self._load_standing(kind)
                    elif state["verdict"]["kind"]:
                        self.names[kind] = self.new_name(kind)
                        self._load_standing(kind)
                    elif state["paused_by_user"]:
                        self.call("resume", name)
                if short is None and time.monotonic() >= due:
                    short = self.new_name("short")
                if short is not None and self.load(short, finish=40):
                    short, due = None, time.monotonic() + 4
            except Failure as error:
                self._fault(f"a user's call hung: {error}")
            except Exception as error:
                self._fault(f"the user's thread failed: {type(error).__name__}: {error}")
                raise

    def end(self):
        """No more loads; everything that lives is stopped, and everything that was ever accepted has a verdict."""
        self._stop.set()
        self._thread.join()
        for name in sorted(self.perhaps):
            # The same name again: whether or not the first call got through, there is one such task.
            if not self.load(name):
                self._fault(f"{name}: its load was ended in the middle, and cannot be repeated")
        tasks = self.tasks() or {}
        for name, state in tasks.items():
            if not state["verdict"]["kind"] and self.call("stop", name).code != 0:
                # A short one may end by itself between the list and the stop, which is then refused; else it is stopped.
                if not (self.tasks() or {}).get(name, state)["verdict"]["kind"]:
                    self.system.ok("stop", name)
        for name, state in tasks.items():
            if not state["verdict"]["kind"]:
                self.system.wait_verdict(name)
        tasks = self.tasks() or {}
        self.judge_ended(tasks)
        for name in sorted(self.accepted - set(tasks)):
            self._fault(f"{name} was accepted, and is not listed at the end")
        return tasks
