"""Slurm with task/cgroup: what it counts as the job's, and what not. make test-slurm."""

import json
import os
import pathlib
import shlex
import shutil

import pytest
from cluster import USERS, Cluster, processes

from rig.hosts import Wires
from rig.testing import find_plugin

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
    pytest.mark.skipif(not shutil.which("slurmctld"), reason="Slurm is not installed"),
    pytest.mark.skipif(not os.path.isdir("/sys/fs/cgroup/freezer"), reason="no control groups of version 1"),
]


@pytest.fixture
def cluster():
    with Wires() as wires, Cluster(wires, confined=True) as made:
        made.boot()
        made.start_slurm()
        made.start_manager_there()
        for host in "ab":
            made.start_node(host)
        made.wait_workers(2)
        yield made


def groups_of(pid):
    return dict(line.split(":", 2)[1:] for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines())


def test_side_tasks_are_outside_of_the_jobs_control_groups(cluster):
    job = cluster.begin("confined")
    for stage, name in enumerate(("own-a", "own-b")):
        cluster.counter(name, stage)
    for name in ("own-a", "own-b"):
        cluster.wait_steps(name, 5)
    ranks = [pid for pid in processes(str(cluster.trainings["confined"])) if "slurm_" in groups_of(pid)["memory"]]
    seen = {groups_of(pid)["memory"].split("/")[1]: groups_of(pid)["freezer"] for pid in ranks}
    assert set(seen) == {"slurm_a", "slurm_b"} and all(f"/job_{job}/" in group for group in seen.values()), seen
    runners = cluster.runners()
    assert len(runners) >= 2
    assert not [pid for pid in runners if any("slurm_" in group for group in groups_of(pid).values())]
    assert cluster.cancel("confined", job) != 0
    cluster.wait_idle()
    assert not cluster.left("a") and not cluster.left("b")
    cluster.stop_tasks("own-a", "own-b")


def own_job(cluster):
    """A job of alice's with a manager, nodes and a side task of its own."""
    ranks = shlex.join(map(str, cluster.ranks("own", 1_000_000, cluster.root / "home-alice")))
    task = [find_plugin("keeper.so"), "--name", "own", "--stage", 1]
    return cluster.own_job("sh", "-c", ranks, side_tasks=task)


def own_steps(cluster, job, had):
    """Until its task has made some more steps than it had saved; returns how many it has made."""
    ctl = ["env", f"FREERIDE_RUN_DIR={cluster.root}/home-alice/freeride-{job}", cluster.tree.program("freeride-ctl")]
    ask = cluster.as_user("alice", [*ctl, "task", "own", "--format", "json"])

    def steps():
        done = cluster.on("a", *ask, check=False)
        told = json.loads(done.stdout)["task"]["state"]["counters"]["metrics"] if done.returncode == 0 else {}
        made = told.get("n", 0)
        return made if made >= had + 5 and told.get("restored", -1) >= had else 0

    return cluster.wait(steps, "steps of the job's own task")


def test_without_an_administrator_side_tasks_run_in_the_job_and_end_with_it(cluster):
    """Root's own daemons are on these nodes, too, and not used."""
    had = 0
    # As before its time is over; then the training alone is ended, which is the script's second step. The second job
    # goes on from what the first one's task has saved.
    for end in (["--batch", "--signal=TERM", "{job}"], ["{job}.1"]):
        job = own_job(cluster)
        try:
            had = own_steps(cluster, job, had)
            groups = [groups_of(pid)["memory"] for pid in processes("freeride-runner", USERS["alice"])]
            assert groups and all(f"/job_{job}/" in group for group in groups), groups
            cluster.on("a", *cluster.user_words(["scancel", *(word.format(job=job) for word in end)]))
            cluster.wait_off(job)
        except BaseException:
            print(cluster.own_text(job))
            raise
        cluster.wait_idle()
        assert not cluster.left("a") and not cluster.left("b")
