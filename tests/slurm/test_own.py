"""A node on the manager's own host, which has no key, and side tasks in one's own job where Slurm tracks processes by their
parents only. make test-slurm."""

import os
import shutil
import signal

import pytest
from cluster import USERS, Cluster, processes

from rig.hosts import Wires
from rig.testing import find_plugin

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
    pytest.mark.skipif(not shutil.which("slurmctld"), reason="Slurm is not installed"),
]


@pytest.fixture
def cluster():
    with Wires() as wires, Cluster(wires) as made:
        made.boot()
        made.start_slurm()
        yield made


def test_the_managers_own_host_has_no_key_and_is_given_back_and_emptied_under_its_own_name(cluster):
    """Epilog asked for the node's name in Slurm, found nothing, and stopped its daemon after each job."""
    cluster.start_manager_there()
    words = [cluster.tree.program("freeride-node"), "--device", "cpu-0", "--cores", 0, "--", *cluster.tree.libraries()]
    cluster.start_on("a", "node-a", words, {"FREERIDE_RUN_DIR": str(cluster.run_dir)})
    cluster.wait_workers(1)
    cluster.set_node("a", FREERIDE_RUN_DIR=cluster.run_dir)

    def drained():
        (worker,) = cluster.ok("workers")["workers"]
        assert worker["state"]["worker"] not in ("a:cpu-0", "twin:cpu-0")
        return worker["drained"]

    for _ in range(2):
        cluster.srun("open", "-N1", "-w", "a", "--freeride", "sleep", "1000")
        job = cluster.job()
        cluster.wait(lambda: not drained(), "the node is given back")
        cluster.cancel("open", job)
        cluster.wait_idle()
        cluster.wait(drained, "the node is drained")
        assert cluster.processes["node-a"].poll() is None


def test_no_manager_outlives_the_job_and_the_next_one_has_its_state(cluster):
    """The job's script ended a shell in the manager's place; the manager held the state folder for good."""
    task = [find_plugin("keeper.so"), "--name", "own", "--when-idle"]
    for _ in range(2):
        job = cluster.own_job("sh", "-c", "sleep 3; echo trained", side_tasks=task)
        cluster.wait_ended(job)
        said = cluster.own_text(job)
        assert said.count("trained\n") == 2 and "without side tasks" not in said, said
        # Nothing that reads like a fault.
        for words in ("srun: ", "slurmstepd", "CANCELLED", " error ", "nothing that is drained"):
            assert words not in said, said
        for program in ("freeride-manager", "freeride-node", "freeride-worker", "freeride-runner"):
            assert not processes(program, USERS["alice"]), said


def test_a_training_whose_side_tasks_have_no_manager_runs_all_the_same(cluster):
    state = cluster.root / "home-alice/.local/state/freeride-own/manager"
    run = cluster.root / "home-alice/other"
    other = [cluster.tree.program("freeride-manager"), "--run-dir", run, "--state-dir", state]
    cluster.start("other", cluster.enter("a", cluster.as_user("alice", cluster.user_words(other))))
    cluster.wait((run / "commands.sock").exists, "a manager of the same state folder")
    job = cluster.own_job("sh", "-c", "echo trained; exit 3", side_tasks=["none.so"])
    cluster.wait_ended(job)
    said = cluster.own_text(job)
    assert said.count("trained\n") == 2, said
    lines = [line for line in said.splitlines() if "own-side-tasks" in line]
    assert lines == [
        "own-side-tasks: freeride-manager has ended, the lines above say why: the training runs without side tasks"
    ], said
    assert "another manager uses this state folder" in said, said
    assert cluster.job_state(job)["ExitCode"] == "3:0"
    assert len(processes("freeride-manager", USERS["alice"])) == 1  # the other one
    cluster.signal("other", signal.SIGKILL)
    cluster.processes.pop("other").wait(20)
