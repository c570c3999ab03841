"""Saved states on their way to other hosts: two workers with folders of their own, as if each was on a host."""

import pytest

from rig.testing import System, find_plugin, until


@pytest.fixture
def system():
    with System() as running:
        running.start_manager()
        for host in ("a", "b"):
            running.start_worker(
                f"cpu-{'ab'.index(host)}", "--host-id", host, "--state-dir", running.root / f"state-{host}"
            )
        running.wait_workers(2)
        yield running


def counted(system):
    return system.task("t")["counters"]["metrics"].get("n", -1)


def host_of(system):
    return (system.task("t").get("worker") or "").split(":")[0]


def wait_counted_once(system):
    """What the task says itself and what was counted of it on all hosts are the same: no step is lost or counted twice."""

    def same():
        counters = system.task("t")["counters"]
        return counters["metrics"].get("n") == counters["steps"]

    until(same, "the task's own count is the number of its steps")


def move(system):
    """Off its host, to the other one."""
    old = host_of(system)
    system.ok("drain", f"host:{old}")
    until(lambda: host_of(system) not in ("", old), "it is placed on the other host")
    system.ok("uncordon", f"host:{old}")
    return old, host_of(system)


def test_a_drained_task_continues_on_another_host_and_back(system):
    system.ok("load", find_plugin("keeper.so"), "--name", "t", "--when-idle")
    system.wait_steps("t", more=50)
    for _ in range(3):
        before = counted(system)
        assert before > 0
        old, new = move(system)
        assert {old, new} == {"a", "b"}
        until(lambda at=before: counted(system) > at, "it goes on from what it had counted")
        system.wait_steps("t", more=20)
    wait_counted_once(system)
    # What was fetched once is not fetched for another content.
    other = system.root / "other-keeper.so"
    other.write_bytes(find_plugin("keeper.so").read_bytes() + b"another content")
    before = counted(system)
    system.ok("load", other, "--replace", "t", "--yes")
    until(lambda: counted(system) > before, "the new content goes on from the old one's count")
    wait_counted_once(system)
    for host in ("a", "b"):
        assert (system.root / f"state-{host}" / "tasks/t/state").exists()


def test_a_task_waits_for_its_state_while_the_other_hosts_worker_is_away(system):
    system.ok("load", find_plugin("keeper.so"), "--name", "t", "--when-idle")
    system.wait_steps("t", more=50)
    before, old = counted(system), host_of(system)
    device = f"cpu-{'ab'.index(old)}"
    system.end(f"worker-{device}")  # in good order: it saves
    until(lambda: host_of(system) not in ("", old), "it is placed on the other host")
    system.start_worker(device, "--host-id", old, "--state-dir", system.root / f"state-{old}", name="again")
    until(lambda: counted(system) > before, "it goes on from what it had counted", seconds=90)
    wait_counted_once(system)
