"""Trainings without a pipeline, with a side task in their idle phases: the same losses to the bit, and the phases are harvested."""

import sys

import pytest

from rig.system import read_lines
from rig.testing import SOURCE, System, find_plugin, until

ROLLOUTS = ["--size", "tiny", "--rollout-s", "0.4,0.3"]


@pytest.fixture
def system():
    with System(env={"FREERIDE_JOB": "rl"}) as running:
        running.start_manager()
        for device in ("cpu-0", "cpu-1"):
            running.start_worker(device)
        running.wait_workers(2)
        yield running


def start(system, name, script, *words, env=None):
    log = system.root / f"{name}.jsonl"
    words = [sys.executable, SOURCE / "hooks/examples" / script, "--log-json", log, *words]
    return system.start(name, list(map(str, words)), env=env), log


def losses(log):
    """Of whole lines."""
    return [line["loss"] for line in read_lines(log)]


def ended(process, name):
    until(lambda: process.poll() is not None, f"{name} ends", 300)
    assert process.returncode == 0


def phases(system):
    return {phase["phase"]: phase for job in system.ok("report")["jobs"] for phase in job.get("phases", [])}


def test_a_side_task_harvests_rollouts_and_changes_no_loss(system):
    plain, without = start(system, "plain", "grpo.py", *ROLLOUTS, "--iterations", 14, "--hook", "off")
    ended(plain, "the training without a side task")
    more = ["--stage", 0, "--memory", "128MiB"]
    system.load(
        find_plugin("pagerank.so"), "pagerank", *more, params=["scale=10", "tolerance=0", "max_iterations=1000000"]
    )
    _, beside = start(system, "hooked", "grpo.py", *ROLLOUTS, "--seconds", 600)
    until(lambda: phases(system).get("rollout", {}).get("harvested_ns", 0) > 0, "a rollout is harvested", 200)
    system.wait_steps("pagerank", 20)
    until(lambda: len(losses(beside)) >= 14, "as many iterations as without a side task", 200)
    assert losses(beside)[:14] == losses(without)
    assert system.stop_tasks("pagerank")[0]["kind"] == "stopped"


def test_a_checkpoint_of_a_pipeline_is_a_phase_of_its_own_name(system):
    """Found without a word; with bubbles in the same job."""
    words = ["--stages", "2", "--dim", "64", "--layers", "2", "--seq", "64", "--iterations", "12", "--save-every", "3"]
    plain, without = start(system, "plain", "train_gpt.py", *words)
    ended(plain, "the training without the hook")
    hooked, beside = start(system, "hooked", "train_gpt.py", *words, "--hook", "on", env={"FREERIDE_IDLE": "save"})
    until(lambda: phases(system).get("save", {}).get("count", 0) >= 4, "checkpoints are counted", 200)
    ended(hooked, "the training with the hook")
    assert losses(beside) == losses(without)
