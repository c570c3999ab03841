"""bench/scale with two nodes of eight workers each: what it counts is there, and no task is lost or held twice."""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests")]

from nodes import WORKERS, Cluster  # noqa: E402

from rig.testing import BUILD  # noqa: E402
from rig.tree import Tree  # noqa: E402

TREE = Tree.of_build(BUILD)
GPUS = 2 * WORKERS


@pytest.fixture
def cluster():
    with Cluster(TREE, GPUS, GPUS, []) as made:
        yield made


def ask(cluster, *words):
    said = cluster.ask(*words, 60)
    assert said["reached"], said
    return said


def test_tasks_are_placed_survive_a_manager_and_a_node_that_goes(cluster):
    assert ask(cluster, "connect", 0)["registered"] == GPUS
    said = ask(cluster, "submit", GPUS)
    assert (said["failed"], said["held"], said["twice"]) == (0, GPUS, 0)
    figures = cluster.ask("figures")
    assert figures["reports"] > 0
    cluster.end_manager()
    cluster.ask("forget-registered")
    cluster.start_manager()
    ask(cluster, "wait-registered")
    ask(cluster, "wait-tasks", GPUS)
    cluster.ask("away", 1)
    assert ask(cluster, "back")["registered"] == GPUS
    ask(cluster, "wait-tasks", GPUS)


def test_more_workers_than_the_limit_are_refused_and_the_others_served():
    with Cluster(TREE, GPUS, GPUS, ["--max-workers", WORKERS]) as small:
        small.ask("connect", 0, 3)
        assert small.ask("figures")["registered"] == WORKERS
        log = (small.system.root / "nodes.log").read_text()
        assert "there are 8 workers already" in log and "--max-workers" in log
