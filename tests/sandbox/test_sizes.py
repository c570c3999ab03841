"""What libraries size themselves by in a sandbox: cores, memory nodes and limits are the task's own, not the host's."""

import os
import shutil
import subprocess

import pytest

from rig.testing import BUILD, System

PYTHON = "/usr/bin/python3"
CORE = max(os.sched_getaffinity(0))
MEMORY = 600 << 20
SLACK = 16 << 20  # for what is not the task's own: kMemorySlackBytes


@pytest.fixture(scope="module")
def system():
    with System() as one:
        one.start_manager()
        one.start_worker(f"cpu-{CORE}")  # which has that core alone
        one.wait_workers(1)
        yield one


def output(system, *words, flags=()):
    """What a program prints as a side task on an idle device."""
    done = subprocess.run(
        [BUILD / "bin/freeride-ctl", "submit", "--when-idle", "--memory", str(MEMORY), *flags, "--", *words],
        env=system.env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_libraries_see_the_cores_of_the_task(system):
    said = output(system, "sh", "-c", "getconf _NPROCESSORS_CONF; lstopo-no-graphics --only pu -p 2>&1")
    assert said.splitlines() == ["1", f"PU P#{CORE}"]


def in_a_group(system, name):
    if "cgroup v" not in system.info(name)["sandbox"]:
        pytest.skip("the worker may write no control groups here")


def test_libraries_see_the_limits_of_the_task(system):
    look = "cd /sys/fs/cgroup; cat memory.max memory/memory.limit_in_bytes 2>/dev/null || true"
    said = output(system, "sh", "-c", look, flags=("--name", "looks"))
    in_a_group(system, "looks")
    assert said == f"{MEMORY + SLACK}\n"


MPI = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))"


def test_one_process_may_call_mpi_init_where_there_is_no_ssh(system):
    assert output(system, PYTHON, "-c", MPI, flags=("--env", "PATH=/nonexistent")) == "1\n"


def test_mpirun_starts_two(system):
    said = output(system, "mpirun", "--oversubscribe", "--mca", "plm", "isolated", "-n", "2", PYTHON, "-c", MPI)
    assert said.splitlines().count("2") == 2, said


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
def test_the_jvm_sees_cores_and_limits_of_the_task(system):
    said = output(system, "sh", "-c", "java -XshowSettings:system -version 2>&1", flags=("--name", "java"))
    in_a_group(system, "java")
    assert "Effective CPU Count: 1" in said and "Memory Limit: 616.00M" in said, said
