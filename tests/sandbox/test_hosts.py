"""Hosts that lack something: the worker says what, in one line, and does not go on with less than it was asked for."""

import os
import pathlib
import shutil
import subprocess

import pytest

import suite
from rig.testing import BUILD, System, until

USER = 65534
WORKER = BUILD / "bin/freeride-worker"
needs_root = pytest.mark.skipif(
    subprocess.run(["id", "-u"], capture_output=True, text=True, check=True).stdout.strip() != "0",
    reason="only root can take things from its own host",
)


@pytest.fixture
def folders(tmp_path):
    tmp_path.chmod(0o755)
    return ["--run-dir", tmp_path / "run", "--state-dir", tmp_path / "state"]


def refusal(argv, *prefix):
    """The one line of error of a worker that does not start."""
    done = subprocess.run(
        [*prefix, WORKER, "--device", "cpu-0", *map(str, argv)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if " error " in line]
    assert done.returncode in (1, 2) and len(said) == 1, (done.returncode, done.stdout, done.stderr)
    assert "ready:" not in done.stdout + done.stderr
    return said[0]


def test_no_bubblewrap(folders):
    assert "install bubblewrap" in refusal([*folders, "--bwrap", "/nowhere/bwrap"])
    line = refusal(folders, "env", "PATH=/nowhere")
    assert "bwrap is not on the PATH" in line and "--sandbox none" in line


def test_limits_that_make_no_sense(folders):
    assert "--task-pids" in refusal([*folders, "--task-pids", "1"])
    assert "--scratch-bytes" in refusal([*folders, "--scratch-bytes", "0"])
    assert "--task-cpus" in refusal([*folders, "--task-cpus", "-1"])
    assert "--data" in refusal([*folders, "--data", "/nowhere"])


@pytest.fixture
def user_namespace():
    """How to enter a user namespace with the host's first 65536 numbers, in which no further one can be made."""
    holder = subprocess.Popen(["unshare", "--user", "sh", "-c", "echo made; exec sleep 600"], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline()
        for kind in ("uid", "gid"):
            pathlib.Path(f"/proc/{holder.pid}/{kind}_map").write_text("0 0 65536")
        enter = ["nsenter", "--user", f"--target={holder.pid}", "--setuid=0", "--setgid=0"]
        subprocess.run([*enter, "sh", "-c", "echo 0 >/proc/sys/user/max_user_namespaces"], check=True)
        yield enter
    finally:
        holder.kill()
        holder.wait()


@needs_root
def test_no_user_namespaces(folders, user_namespace):
    line = refusal([*folders, "--first-task-uid", "1000"], *user_namespace)
    assert "user namespaces are needed" in line and "user.max_user_namespaces" in line


@needs_root
def test_no_user_number_for_tasks(folders, user_namespace):
    line = refusal(folders, *user_namespace)
    assert "--first-task-uid" in line


@needs_root
def test_a_covered_proc(folders):
    line = refusal(
        folders,
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none /proc/acpi 2>/dev/null || mount -t tmpfs none /proc/fs; exec "$@"',
        "sh",
    )
    assert "systempaths=unconfined" in line


@needs_root
def test_read_only_control_groups_mean_rlimits_and_say_so():
    mounts = [
        line.split() for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup" in line
    ]
    script = "".join(f"mount -o remount,bind,ro {fields[4]}; " for fields in mounts) + 'exec "$@"'
    with System() as system:
        system.start_manager()
        argv = ["unshare", "--mount", "sh", "-c", script, "sh", WORKER, "--device", "cpu-0", *suite.FLAGS]
        process = system.start("worker-cpu-0", argv)
        until(
            lambda: (system.run_dir / "worker-cpu-0.sock").exists() or process.poll() is not None, "the worker listens"
        )
        assert "rlimits, no control group" in system.log("worker-cpu-0")
        ctl = system.calls
        some = [
            case
            for case in suite.cases()
            if case.name in ("thread-bomb", "leak", "fill-scratch", "raise-priority", "fork-bomb")
        ]
        for case in some:
            case.limit = case.limit if case.name != "thread-bomb" else ""  # an rlimit keeps no count
        assert not suite.run(ctl, BUILD / "test-plugins", some, "--when-idle")
        assert "rlimits: data 192 MiB, pids 64" in system.ok("task", "leak")["task"]["sandbox"]


@needs_root
def test_an_ordinary_user():
    """Without privileges tasks share the worker's user, which is said; everything else holds."""
    if shutil.which("setpriv") is None:
        pytest.fail("setpriv (util-linux) is missing")
    with System() as system:
        # Given to the user by root, as a service's are: so root's freeride-ctl believes what listens there.
        for folder in (system.run_dir, system.state_dir, system.state_dir / "plugins"):
            os.chown(folder, USER, USER)
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        manager = system.start("manager", [*user, BUILD / "bin/freeride-manager"])
        until(lambda: system.ctl("status").code == 0 or manager.poll() is not None, "the manager answers")
        assert manager.poll() is None, system.log("manager")
        argv = [*user, WORKER, "--device", "cpu-0", *suite.FLAGS]
        process = system.start("worker-cpu-0", argv)
        until(
            lambda: (system.run_dir / "worker-cpu-0.sock").exists() or process.poll() is not None, "the worker listens"
        )
        ctl = system.calls
        some = [
            case
            for case in suite.cases()
            if case.name in ("read-files", "kill-others", "trace-supervisor", "leak", "raise-priority")
        ]
        assert not suite.run(ctl, BUILD / "test-plugins", some, "--when-idle")
        assert "the worker's own" in system.ok("task", "leak")["task"]["sandbox"]
