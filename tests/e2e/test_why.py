"""`freeride-ctl why` names what stands in a side task's way: each cause is brought about with real processes, and the
same reason stands in `task`, `tasks` and their JSON."""

import collections
import contextlib
import signal
import subprocess

from rig.processes import Failure
from rig.testing import System, find_plugin, until

WORKER = ("--sandbox", "none")


def start_trainer(system):
    """Two stages, until it is killed. The bubbles of stage 0 are some 10 ms long, those of stage 1 hardly any."""
    return system.start("trainer", [system.tree.programs / "c_trainer", 1_000_000])


def counter(system, name, *flags, **params):
    system.load(find_plugin("counter.so"), name, *flags, params={"step_us": 200, **params})


def faulty(system, name, *flags, **params):
    system.load(find_plugin("faulty.so"), name, *flags, params=params)


def told(system, name, why, words):
    """Waits until the cause is `why`; what is said of it holds `words`, wherever one looks."""

    others = collections.Counter()

    def now():
        told = system.ok("why", name)["tasks"][0]
        others[told.get("why", "")] += 1
        return told if told.get("why") == why else None

    try:
        seen = until(now, f"{name} is told to be {why}")
    except Failure as failure:
        raise Failure(f"{failure}; instead {dict(others)}, at last {system.task(name).get('reason')}") from None
    assert words in seen["reason"], seen
    return seen


def text_of(system, *words):
    """As people see it."""
    words = [system.tree.program("freeride-ctl"), *words]
    return subprocess.run(words, env=system.env, capture_output=True, text=True, timeout=120).stdout


def same_everywhere(system, name, words):
    """Of a cause that lasts."""
    line = text_of(system, "why", name)
    shown = text_of(system, "task", name)
    listed = next(task for task in system.ok("tasks")["tasks"] if task["state"]["task"] == name)
    for text in (line, shown, listed["state"]["reason"]):
        assert words in text, text


def test_causes_before_a_task_is_placed():
    with System() as system:
        system.start_manager()
        counter(system, "early", "--stage", 0)
        told(system, "early", "no_worker", "start freeride-worker")
        same_everywhere(system, "early", "start freeride-worker")

        system.start_worker("cpu-0", *WORKER)
        told(system, "early", "no_trainer", "a trainer with stage 0")

        start_trainer(system)
        system.wait_steps("early")
        faulty(system, "hangs", "--stage", 0, where="create", how="hang")
        told(system, "hangs", "profiling", "being profiled on")
        counter(system, "behind", "--stage", 0, step_us=300)
        told(system, "behind", "profile_wait", "another profile is being taken on")
        system.stop_tasks("hangs", "behind")

        memory = f"{(system.ok('workers')['workers'][0]['state']['memory_bytes'] >> 20) // 10 * 6}MiB"
        system.load(find_plugin("counter.so"), "large", "--stage", 0, "--memory", memory, params={"step_us": 200})
        system.wait_steps("large")
        system.load(find_plugin("counter.so"), "second", "--stage", 0, "--memory", memory, params={"step_us": 200})
        told(system, "second", "no_memory", "MiB free")
        same_everywhere(system, "second", "waiting for memory")


def test_causes_of_a_task_that_has_its_place():
    with System() as system:
        system.start_manager()
        worker = system.start_worker("cpu-0", *WORKER)
        system.start_worker("cpu-1", *WORKER)
        # Profiled while nobody trains: of the long one no step fits a bubble.
        counter(system, "good", "--stage", 0)
        counter(system, "long", "--stage", 0, step_us=100_000)  # also on a machine that stretches bubbles
        until(lambda: len(system.ok("profile", "list")["profiles"]) == 2, "both are profiled")
        trainer = start_trainer(system)
        system.wait_steps("good")
        # What is told may be some hundred milliseconds old.
        until(
            lambda: system.ok("why", "good")["tasks"][0].get("why", "") in ("", "training", "no_task", "past_lengths"),
            "a task that makes steps lacks nothing",
        )

        system.ok("pause", "good")
        told(system, "good", "paused_by_user", "paused by the user")
        same_everywhere(system, "good", "paused by the user")

        # Alone with the bubbles of its stage; the other stage's are of some microseconds.
        seen = told(system, "long", "step_too_long", "does not fit the bubbles")
        assert "leases unused" in seen["reason"], seen
        system.stop_tasks("long")
        system.ok("resume", "good")

        faulty(system, "fails", "--stage", 0, where="step", how="fail", after=200)
        verdict = system.wait_verdict("fails")
        assert verdict["kind"] == "failed" and "told to fail" in verdict["reason"], verdict
        assert "verdict failed: told to fail" in text_of(system, "why", "fails")

        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        told(system, "good", "device_idle", "waiting for a trainer on")

        worker.send_signal(signal.SIGKILL)
        worker.wait()
        until(lambda: system.task("good").get("why") in ("fenced", "worker_silent"), "its worker is missed")
        same_everywhere(system, "good", "waiting")


def test_baseline_iterations_and_iterations_off_duty():
    for flags, why, words in (
        (("--baseline-pct", 50), "holdout", "a baseline iteration"),
        (("--budget-pct", 0, "--baseline-pct", 10), "off_duty", "the slowdown budget skips"),
    ):
        with contextlib.ExitStack() as stack:
            system = stack.enter_context(System())
            system.start_manager(*flags)
            system.start_worker("cpu-0", *WORKER)
            system.start_worker("cpu-1", *WORKER)
            start_trainer(system)
            counter(system, "t", "--stage", 0)
            told(system, "t", why, words)


def reasons(system, *words):
    """What `ranks` says, by rank: state and reason."""
    ranks = [rank["state"] for rank in system.ok("ranks", *words)["ranks"]]
    return {rank["rank"]: (rank["state"], rank["why"]) for rank in ranks}


def test_each_rank_says_whether_its_bubbles_are_used():
    with System() as system:
        system.start_manager()
        assert "no rank is known" in text_of(system, "ranks") and "freeride.observe" in text_of(system, "ranks")
        system.start_worker("cpu-0", *WORKER)
        stopped = system.start_worker("cpu-1", *WORKER)
        trainer = start_trainer(system)
        until(lambda: reasons(system).get(0) == ("active", "no_task"), "rank 0 lacks a task")
        system.ok("drain", "cpu-0")
        until(lambda: reasons(system)[0] == ("active", "drained"), "rank 0 is drained")
        system.ok("uncordon", "cpu-0")
        counter(system, "t", "--stage", 0)
        until(lambda: reasons(system)[0] == ("active", "harvesting"), "rank 0 is harvested")
        # Of some microseconds; where the machine stretches them, they can be used.
        until(
            lambda: reasons(system).get(1, ("", ""))[1] in ("too_short", "no_task"), "rank 1 gets nothing, and says why"
        )
        text = text_of(system, "ranks")
        for words in ("REASON", "harvesting: side tasks make steps", f"\n{reasons(system)[1][1]}: "):
            assert words in text, text
        job = system.ok("ranks")["ranks"][0]["state"]["job"]
        assert len(reasons(system, job)) == 2 and not reasons(system, "another")

        stopped.send_signal(signal.SIGKILL)
        stopped.wait()
        until(lambda: reasons(system)[1] == ("lost", "worker_lost"), "rank 1's worker is missed")
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        until(lambda: reasons(system)[0] == ("lost", "died"), "rank 0 has died")
