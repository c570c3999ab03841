"""Slurm with task/cgroup: what it counts as the job's, and what not. make test-slurm."""

import os
import pathlib
import shutil

import pytest
from cluster import Cluster

from rig.hosts import Wires

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


def processes(words):
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if words in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


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
