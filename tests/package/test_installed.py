"""The Debian package where it is meant for: on a machine that systemd boots. Installed, started, upgraded with side
tasks that run, removed, purged. The GPU's driver and its MPS are played, everything else is real.

The tests are one story, in this order: each goes on where the one before it ended (make test-installed ends at the first
that fails)."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from machine import Installed, Machine
from rig.processes import until

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"])
GPU = "GPU-5e1f"
MANAGER, NODE = "freeride-manager", "freeride-node"
ON_GPU, ON_CPU = f"freeride-worker@{GPU}", "freeride-worker@cpu-0"
# What systemd-analyze may find to blame, in tenths of 10; more than this is a protection that was lost.
MOST_EXPOSED = {MANAGER: 19, ON_GPU: 51}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The one package of before, with all files, and this build's two: the former is installed first."""
    folder = tmp_path_factory.mktemp("package")
    subprocess.run(["cpack", "-G", "DEB", "-B", folder], cwd=BUILD, check=True, capture_output=True)
    (new,), (hook,) = folder.glob("freeride_*.deb"), folder.glob("freeride-hook_*.deb")
    subprocess.run(["dpkg-deb", "-R", new, folder / "before"], check=True)
    subprocess.run(["dpkg-deb", "-x", hook, folder / "before"], check=True)
    control = folder / "before/DEBIAN/control"
    text = re.sub(r"^Version: .*$", "Version: 0.1.0", control.read_text(), flags=re.M)
    control.write_text(re.sub(r", freeride-hook \([^)]*\)|freeride-hook \([^)]*\), ", "", text))
    assert "freeride-hook" not in control.read_text()
    subprocess.run(["dpkg-deb", "-b", folder / "before", folder / "before.deb"], check=True, capture_output=True)
    return folder / "before.deb", new, hook


@pytest.fixture(scope="module")
def machine(packages):
    with Machine() as machine:
        for file in (
            *packages,
            BUILD / "fake-driver/libnvidia-ml.so.1",
            SOURCE / "worker/gpu/fake_mps_control_test_support.py",
            *(BUILD / f"test-plugins/{name}.so" for name in ("counter", "set_clock", "trace_supervisor")),
        ):
            shutil.copy(file, machine.shared)
        machine.ok("mkdir", "/opt/driver")
        machine.ok("cp", "/shared/libnvidia-ml.so.1", "/opt/driver/")
        machine.ok("cp", "/shared/fake_mps_control_test_support.py", "/opt/driver/nvidia-cuda-mps-control")
        machine.write("/opt/driver/gpu", f"uuid {GPU}\nname H200\ntotal {80 << 30}\nused {1 << 30}\nmode 0\n")
        machine.write(
            f"/etc/freeride/worker-{GPU}.env",
            "LD_LIBRARY_PATH=/opt/driver\nFREERIDE_FAKE_GPU=/opt/driver/gpu\n"
            "FREERIDE_MPS_CONTROL=/opt/driver/nvidia-cuda-mps-control\n",
        )
        machine.write("/etc/freeride/worker-cpu-0.env", "FREERIDE_CORES=0\n")
        yield machine


@pytest.fixture
def system(machine, request):
    yield Installed(machine)
    if request.session.testsfailed:
        print(machine.run("journalctl", "--no-pager", "--unit", "freeride-*", "--lines", "60").stdout)
        print(machine.run("freeride-ctl", "tasks").stdout)


def states(machine, *units):
    return machine.run("systemctl", "is-active", *units).stdout.split()


def main_pid(machine, unit):
    return int(machine.ok("systemctl", "show", "--property", "MainPID", "--value", unit))


def load(system, plugin, name, *flags):
    system.ok("load", f"/shared/{plugin}.so", "--name", name, "--when-idle", *flags)


def test_an_installation_starts_nothing_until_told_to(machine, packages):
    machine.ok("dpkg", "--install", f"/shared/{packages[0].name}")
    assert states(machine, MANAGER, ON_GPU) == ["inactive", "inactive"]
    # Keys can be made before anything of it has run, in a folder as systemd makes it.
    folder = ["stat", "--format", "%a %U %G", "/var/lib/freeride"]
    assert machine.ok(*folder) == "751 root freeride"
    machine.ok(
        "freeride-ctl", "keys", "make", "gpu7-node", "--role", "node", "--host", "gpu7", "--out", "/tmp/gpu7.key"
    )
    machine.ok("systemctl", "enable", "--now", MANAGER, ON_CPU)
    assert states(machine, MANAGER, ON_GPU, ON_CPU) == ["active", "inactive", "active"]
    assert machine.ok(*folder) == "751 root freeride"


def test_a_packaged_worker_runs_side_tasks_on_a_cpu(system):
    load(system, "counter", "on-cpu", "--memory", "64MiB", "--param", "step_us=300")
    system.wait_steps("on-cpu")
    sandbox = system.info("on-cpu")["sandbox"]
    assert sandbox.startswith("bubblewrap (uid 20000000") and "; cgroup v" in sandbox, sandbox


def test_a_packaged_root_worker_may_give_a_task_its_mps_folder(machine, system):
    """Its unit lacked the capability, so no side task could start on a GPU."""
    machine.ok("systemctl", "enable", "--now", ON_GPU)
    system.wait_workers(2)
    load(system, "counter", "on-gpu", "--memory", "60GiB", "--param", "step_us=300")  # more than the CPU's worker has
    system.wait_steps("on-gpu")
    assert "MPS server of its own" in system.info("on-gpu")["sandbox"]


def test_state_and_results_are_not_everybodys_to_read(machine):
    assert machine.ok("stat", "--format", "%a", "/var/lib/freeride/freeride.db") == "600"
    assert machine.ok("stat", "--format", "%a", "/var/lib/freeride/store") == "751"  # the group may list it


@pytest.mark.parametrize("plugin", ["set_clock", "trace_supervisor"])
def test_what_the_unit_refuses_fails_in_a_side_task_too(system, plugin):
    """They end as finished only where the call failed."""
    name = plugin.replace("_", "-")
    load(system, plugin, name)
    assert system.wait_verdict(name)["kind"] == "finished"


@pytest.mark.parametrize("unit", MOST_EXPOSED)
def test_systemd_finds_no_more_to_blame_in_a_unit(machine, unit):
    done = machine.run("systemd-analyze", "security", "--no-pager", "--threshold", MOST_EXPOSED[unit], unit)
    assert done.returncode == 0, done.stdout


def test_a_worker_that_is_killed_comes_back_with_its_side_task(machine, system):
    before = main_pid(machine, ON_GPU)
    machine.ok("kill", "-KILL", before)
    until(lambda: main_pid(machine, ON_GPU) not in (0, before), "systemd starts the worker again")
    system.wait_steps("on-gpu")
    assert states(machine, ON_GPU) == ["active"]


def test_an_upgrade_restarts_the_programs_and_side_tasks_go_on(machine, packages, system):
    before = {unit: main_pid(machine, unit) for unit in (MANAGER, ON_GPU, ON_CPU)}
    machine.ok("dpkg", "--install", *(f"/shared/{package.name}" for package in packages[1:]))
    assert states(machine, *before) == ["active"] * 3
    for unit, pid in before.items():
        assert main_pid(machine, unit) != pid, f"{unit} is still the old version's"
    for name in ("on-gpu", "on-cpu"):
        system.wait_steps(name)


def test_debians_python_runs_and_observes_with_no_path_set(machine):
    """As root, whose Python leaves what it compiles beside the package."""
    for module, said in (("freeride.run", "freeride.run"), ("freeride.observe", "--report DIR")):
        assert said in machine.ok("env", "-i", "PATH=/usr/bin", "/usr/bin/python3", "-m", module, "--help")
    code = "import freeride.observe as o; from freeride._library import Library; print(o.__file__, Library().path)"
    where = machine.ok("env", "-i", "PATH=/usr/bin", "/usr/bin/python3", "-c", code)
    assert where == "/usr/share/freeride/python/freeride/observe.py libfreeride_hook.so"
    machine.ok("test", "-d", "/usr/share/freeride/python/freeride/__pycache__")


def test_a_host_joins_a_manager_by_a_command_on_each_side(machine):
    """This machine is the one host and then the other: its own manager makes way for one that is started by hand."""
    add = ["freeride-ctl", "host", "add", "gpu8", "--out", "/tmp/gpu8-node.key"]
    assert "freeride-manager was restarted" in machine.ok(*add)
    assert machine.ok("cat", "/etc/freeride/manager.env") == "FREERIDE_LISTEN=tcp://*:7420"
    assert "tcp://*:7420, by key" in machine.ok("freeride-ctl", "status")
    assert "is there already" in machine.ok(*add)
    join = ["freeride-ctl", "host", "join", "127.0.0.1", "/tmp/gpu8-node.key", "--device", "cpu-0", "--cores", "0"]
    refused = machine.run(*join)
    disable = re.search(r"systemctl disable --now ([^,;]+)", refused.stderr)
    assert refused.returncode == 1 and set(disable[1].split()) == {MANAGER, ON_GPU, ON_CPU}, refused
    machine.ok(*disable[0].split())
    assert "Connection refused" in machine.run(*join).stderr
    far = ["--run-dir", "/opt/far", "--state-dir", "/opt/far", "--keys-dir", "/var/lib/freeride/keys"]
    machine.ok("systemd-run", "--unit", "far", "freeride-manager", *far, "--listen", "tcp://*:7420")
    until(lambda: machine.run("freeride-ctl", "--run-dir", "/opt/far", "status").returncode == 0, "the other manager")
    joined = "joined tcp://127.0.0.1:7420 as gpu8, with 1 worker"
    assert machine.ok(*join) == joined
    first = main_pid(machine, NODE)
    assert machine.ok(*join) == joined and main_pid(machine, NODE) == first
    assert states(machine, NODE) == ["active"]
    assert machine.ok("systemctl", "is-enabled", NODE) == "enabled"
    assert "gpu8:cpu-0" in machine.ok("freeride-ctl", "--run-dir", "/opt/far", "workers")
    machine.ok("systemctl", "disable", "--now", NODE)
    machine.ok("systemctl", "stop", "far")
    machine.ok("rm", *(f"/etc/freeride/{name}" for name in ("manager.env", "node.env", "node.key")))


def test_a_removed_package_leaves_no_process_and_keeps_the_state(machine):
    machine.ok("dpkg", "--remove", "freeride", "freeride-hook")
    assert set(states(machine, MANAGER, ON_GPU, ON_CPU)) <= {"inactive", "unknown", "failed"}
    assert not [line for line in machine.ok("ps", "-e", "-o", "args=").splitlines() if "/freeride-" in line]
    assert "/usr/bin/freeride" not in machine.run("sh", "-c", "ls /usr/bin/freeride-*").stdout
    assert machine.ok("stat", "--format", "%F", "/var/lib/freeride/freeride.db") == "regular file"


def test_a_purge_leaves_nothing_but_what_the_operator_wrote(machine):
    machine.ok("dpkg", "--purge", "freeride", "freeride-hook")
    left = machine.ok(
        "find", "/etc", "/run", "/usr", "/var", "-name", "*freeride*", "-not", "-path", "/var/log/*"
    ).split()
    assert left == ["/etc/freeride"]
    assert machine.ok("ls", "/etc/freeride").split() == [f"worker-{GPU}.env", "worker-cpu-0.env"]
