"""The main job with four ranks: real training, side tasks loaded as a user would, and every process killed in turn."""

import os
import pathlib
import shutil
import signal

import pytest

from rig.testing import System, find_plugin, until


@pytest.fixture
def system():
    with System() as running:
        yield running


def load_pagerank(system, *flags):
    return system.ctl("load", find_plugin("pagerank.so"), "--name", "pagerank", "--param", "scale=12", *flags)


def test_losses_are_the_same_with_and_without_harvesting(system):
    system.start_manager("--baseline-pct", "0")
    for stage in range(4):
        system.start_worker(f"cpu-{stage}")
    load_pagerank(system, "--stage", 3)
    first = system.start_training(stages=4, iterations=80, name="harvested")
    system.wait_steps("pagerank")
    assert first.poll() is None, "the training was over before anything was harvested"
    assert first.wait(300) == 0
    second = system.start_training(stages=4, iterations=80, name="alone", hook="off")
    assert second.wait(300) == 0
    with_freeride = [i["loss"] for i in system.iterations("harvested")]
    without = [i["loss"] for i in system.iterations("alone")]
    assert len(without) == 80 and with_freeride == without


def test_everything_started_in_the_wrong_order(system):
    system.start_training(stages=4)
    system.wait_iterations(3)
    system.start_worker("cpu-3")
    assert load_pagerank(system, "--stage", 3).code == 3  # no manager
    system.start_manager()
    assert load_pagerank(system, "--stage", 3).code == 0
    system.wait_steps("pagerank")


def test_a_task_waits_for_its_stage_and_says_so(system):
    system.start_manager()
    system.start_worker("cpu-3")
    until(lambda: system.ok("workers")["workers"], "the worker is known")
    assert load_pagerank(system, "--stage", 3).code == 0
    assert system.task("pagerank")["state"] == "SUBMITTED"
    assert "stage 3" in system.task("pagerank")["reason"]


@pytest.fixture(scope="module")
def running():
    """Manager, four workers and an endless four-stage training whose bubbles are known, for all tests from here on: those
    that start their own come before it, and whoever ends the training is the last."""
    with System() as system:
        system.start_manager()
        for stage in range(4):
            system.start_worker(f"cpu-{stage}")
        system.start_training(stages=4)
        until(lambda: len(system.iterations()) >= 8, "training has begun")
        yield system


@pytest.fixture
def job(running):
    """That training, without a side task; what a test has loaded ends with it."""
    yield running
    for task in running.ok("tasks")["tasks"]:
        if not task["state"]["verdict"]["kind"]:
            running.ok("stop", task["state"]["task"])
            running.wait_verdict(task["state"]["task"])
    until(lambda: not running.runners(), "nothing is left behind")


def test_a_dropped_plugin_runs_in_stage_3(job):
    job.listen()
    shutil.copy(find_plugin("pagerank.so"), job.state_dir / "plugins" / "pagerank.so")
    until(lambda: any(p["name"] == "pagerank.so" for p in job.ok("plugins")["plugins"]), "the drop folder is seen")
    job.ok("load", "pagerank.so", "--stage", 3, "--name", "pagerank")
    job.wait_steps("pagerank", 20)
    assert job.task("pagerank")["worker"].endswith("cpu-3")

    until(lambda: [e for e in job.seen("bubble.end") if e["harvested_ns"] > 0], "a bubble is harvested")
    for event in job.seen("bubble.end"):
        assert event["end_ns"] > event["begin_ns"]
        assert 0 <= event["harvested_ns"] <= event["end_ns"] - event["begin_ns"]
        if event["harvested_ns"]:
            assert event["stage"] == 3 and event["leased"] and not event["holdout"]

    job.ok("pause", "pagerank")
    job.wait_state("pagerank", "PAUSED")
    until(
        lambda: job.steps("pagerank") == (job.wait_iterations(2), job.steps("pagerank"))[1],
        "a paused task stands still",
    )
    job.ok("resume", "pagerank")
    job.wait_steps("pagerank", 5)
    job.ok("stop", "pagerank")
    assert job.wait_verdict("pagerank")["kind"] == "stopped"

    # What it had is still known when it has ended, and to a manager that was started again.
    def used(by):
        return job.ok("report", "--since", "1h", "--by", by)["rows"]

    (mine,) = used("task")
    counters = job.task("pagerank")["counters"]
    assert mine["name"] == "pagerank" and mine["steps"] == counters["steps"]
    assert 0 < mine["harvested_ns"] == counters["harvested_ns"]
    (training,) = used("job")
    assert training["tasks"] == 1 and 0 < training["bubble_ns"] < training["gpu_ns"]
    job.end("manager")
    job.start_manager()
    assert used("task") == [mine]


def test_kill_manager(job):
    load_pagerank(job, "--stage", 3)
    job.wait_steps("pagerank")
    before = job.steps("pagerank")
    job.kill("manager")
    job.wait_iterations(5)
    job.start_manager()
    # The worker carried on by itself, registers again, and the task is neither lost nor started twice.
    until(lambda: job.steps("pagerank") > before, "the task comes back with its steps")
    job.wait_steps("pagerank")
    assert job.ctl("task", "pagerank").json["task"]["restarts"] == 0
    assert len(job.runners()) == 2  # supervisor and runner of one task


def test_kill_worker(job):
    load_pagerank(job, "--stage", 3)
    job.wait_steps("pagerank")
    job.kill("worker-cpu-3")
    until(lambda: not job.runners(), "runners end with their worker")
    job.wait_iterations(5)
    job.start_worker("cpu-3")
    job.wait_steps("pagerank")
    assert job.ctl("task", "pagerank").json["task"]["restarts"] == 1


def test_frozen_worker_does_not_leave_a_task_running(job):
    load_pagerank(job, "--stage", 3)
    job.wait_steps("pagerank")
    job.kill("worker-cpu-3", signal.SIGSTOP)
    job.wait_iterations(5)  # training does not wait for it

    def cpu_time():
        return sum(
            sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
            for pid in job.runners()
        )

    # Without a lease the runner stands still (or has been killed by its supervisor): its CPU clock stops.
    until(lambda: (lambda a: (job.wait_iterations(2), cpu_time() == a)[1])(cpu_time()), "the side task stands still")
    job.kill("worker-cpu-3", signal.SIGCONT)


def test_kill_supervisor(job):
    load_pagerank(job, "--stage", 3)
    job.wait_steps("pagerank")
    killed = sorted(job.runners())
    os.kill(killed[0], signal.SIGKILL)
    # Not the task's fault: it is started anew, and nothing of the old one is left.
    until(lambda: job.ctl("task", "pagerank").json["task"]["restarts"] == 1, "the task is started anew")
    until(lambda: not set(killed) & set(job.runners()), "nothing is left behind")
    job.wait_steps("pagerank")
    job.wait_iterations(3)


def test_kill_runner(job):
    load_pagerank(job, "--stage", 3)
    job.wait_steps("pagerank")
    os.kill(sorted(job.runners())[1], signal.SIGKILL)
    verdict = job.wait_verdict("pagerank")
    assert verdict["kind"] == "crashed" and verdict["signal"] == signal.SIGKILL and verdict["reason"]
    until(lambda: not job.runners(), "nothing is left behind")
    job.wait_iterations(3)
    assert job.ctl("load", find_plugin("pagerank.so"), "--name", "again", "--stage", 3, "--param", "scale=12").code == 0
    job.wait_steps("again")


def test_kill_a_training_rank(job):
    load_pagerank(job, "--stage", 3)
    job.wait_steps("pagerank")
    ranks = [w for w in job.ok("workers")["workers"] if w["ranks"]]
    assert len(ranks) == 4
    job.processes["training"].kill()
    os.killpg(job.processes["training"].pid, signal.SIGKILL)
    until(lambda: not any(w["ranks"] for w in job.ok("workers")["workers"]), "the workers notice")
    job.wait_state("pagerank", "PAUSED")
    stopped_at = job.steps("pagerank")
    job.start_training(stages=4, name="second")
    until(lambda: job.steps("pagerank") > stopped_at, "the task goes on with the new training")
