"""freeride-ctl doctor on a host from which things are taken away, one at a time: that line changes, and says what to
do; the rest stays."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
CTL = BUILD / "bin/freeride-ctl"
WATCHDOG_S = 120
PRIVATE = ["unshare", "--mount", "sh", "-c"]  # mounts of one's own: `mount --make-rprivate /` first

pytestmark = pytest.mark.usefixtures("root")


@pytest.fixture
def root():
    if os.geteuid() != 0:
        pytest.fail("these tests take things away from a process, which only root may; run them as root")


@pytest.fixture
def folders(tmp_path):
    tmp_path.chmod(0o755)
    for name in ("run", "state"):
        (tmp_path / name).mkdir(mode=0o755)
    return {"FREERIDE_RUN_DIR": str(tmp_path / "run"), "FREERIDE_STATE_DIR": str(tmp_path / "state")}


class Answer:
    def __init__(self, done):
        self.code = done.returncode
        assert done.stdout, done
        self.json = json.loads(done.stdout)
        assert self.json["ok"] == (self.code == 0)
        assert self.json["missing"] == len(self.named("missing")) and self.json["warnings"] == len(self.named("warn"))

    def named(self, health):
        return {f["name"] for f in self.json["findings"] if f["health"] == health}

    def __getitem__(self, name):
        found = [f for f in self.json["findings"] if f["name"] == name]
        assert len(found) == 1, f"{name}: {self.json}"
        return found[0]


def doctor(folders, *flags, before=(), path=None, **env):
    """Runs it; `before`: words to put before the command, the last of which may be a script that ends in exec "$@"."""
    variables = {**os.environ, **folders, **env}
    if path is not None:
        variables["PATH"] = str(path)
    command = [shutil.which(before[0]), *before[1:]] if before else []
    if before and before[-2:-1] == ["-c"]:
        command.append("sh")  # $0
    done = subprocess.run(
        [*command, CTL, "doctor", "--format", "json", *flags],
        env=variables,
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    return Answer(done)


def test_here_side_tasks_can_run(folders):
    answer = doctor(folders)
    assert answer.code == 0, answer.json
    for name in (
        "futex_waitv",
        "sealed pages",
        "bubblewrap",
        "user namespaces",
        "a /proc of its own",
        "seccomp",
        "a trial",
        "run folder",
        "state folder",
    ):
        assert answer[name]["health"] == "ok" and not answer[name]["advice"], answer[name]


def test_for_people(folders):
    done = subprocess.run(
        [CTL, "doctor"], env={**os.environ, **folders}, capture_output=True, text=True, timeout=WATCHDOG_S, check=False
    )
    assert done.returncode == 0 and not done.stderr, done
    assert "  OK       seccomp" in done.stdout and folders["FREERIDE_RUN_DIR"] in done.stdout
    assert done.stdout.splitlines()[-1].startswith(("all is there", "0 missing"))


def test_no_user_namespaces(folders):
    answer = doctor(
        folders,
        before=[
            "unshare",
            "--user",
            "--map-root-user",
            "sh",
            "-c",
            'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"',
        ],
    )
    assert answer.code == 1
    line = answer["user namespaces"]
    assert (
        line["health"] == "missing"
        and "user.max_user_namespaces is 0" in line["found"]
        and "sysctl user.max_user_namespaces" in line["advice"]
    )


def test_other_users_processes_are_hidden(folders):
    def mounted(options):
        script = f'mount --make-rprivate / && mount -t proc -o {options} proc /proc && exec "$@"'
        return doctor(folders, before=[*PRIVATE, script])["other users' processes"]

    line = mounted("hidepid=2,gid=12345")
    assert line["health"] == "warn" and "gid=12345" in line["found"] and "gid=" in line["advice"]
    assert mounted("hidepid=2")["health"] == "ok"  # the group root sees them
    assert mounted("hidepid=0")["health"] == "ok"


def test_a_part_of_proc_is_covered_as_in_a_container(folders):
    answer = doctor(
        folders, before=[*PRIVATE, 'mount --make-rprivate / && mount --bind /dev/null /proc/version && exec "$@"']
    )
    assert answer.code == 1
    assert answer["user namespaces"]["health"] == "ok"
    assert (
        answer["a /proc of its own"]["health"] == "missing"
        and "systempaths=unconfined" in answer["a /proc of its own"]["advice"]
    )


def test_the_root_is_no_mount_point_as_in_a_plain_chroot(folders, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    top = sorted(path.name for path in pathlib.Path("/").iterdir() if path.is_dir() and not path.is_symlink())
    links = [path for path in pathlib.Path("/").iterdir() if path.is_symlink()]
    for name in top:
        (root / name).mkdir()
    for link in links:
        (root / link.name).symlink_to(os.readlink(link))
    binds = " && ".join(f"mount --rbind '/{name}' '{root}/{name}'" for name in top)
    plain_chroot = f"mount --make-rprivate / && {binds} && exec chroot '{root}' \"$@\""
    line = doctor(folders, before=[*PRIVATE, plain_chroot])["user namespaces"]
    assert line["health"] == "missing" and "/ must be a mount point (not a plain chroot)" in line["advice"], line
    worker = subprocess.run(
        [*PRIVATE, plain_chroot, "sh", BUILD / "bin/freeride-worker", "--device", "cpu-0"],
        env={**os.environ, **folders},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    said = "does not work here: the task could not make its mounts private: Invalid argument; / must be a mount point"
    assert worker.returncode != 0 and said in worker.stderr + worker.stdout, worker


def test_no_bubblewrap(folders):
    answer = doctor(folders, path="/nonexistent")
    assert answer.code == 1
    assert answer["bubblewrap"]["health"] == "missing" and "install bubblewrap" in answer["bubblewrap"]["advice"]
    assert "a trial" not in {f["name"] for f in answer.json["findings"]}


def test_data_that_lies_in_tmp_is_no_obstacle(folders, tmp_path):
    assert str(tmp_path).startswith("/tmp/"), "run this with a temporary folder in /tmp"
    answer = doctor(folders, FREERIDE_DATA=str(tmp_path))
    assert answer["a trial"]["health"] == "ok", answer["a trial"]


def test_sandbox_none_is_said(folders):
    answer = doctor(folders, FREERIDE_SANDBOX="none")
    assert answer["sandbox"]["health"] == "warn" and "not isolated" in answer["sandbox"]["found"] and answer.code == 0


def cgroup_mounts():
    fields = [line.split() for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    return [field[4] for field in fields if field[field.index("-") + 1] in ("cgroup", "cgroup2")]


def test_control_groups_are_read_only(folders):
    assert cgroup_mounts(), "no control groups are mounted here"
    remount = " && ".join(f"mount -o remount,bind,ro {mount}" for mount in cgroup_mounts())
    answer = doctor(folders, before=[*PRIVATE, f'mount --make-rprivate / && {remount} && exec "$@"'])
    line = answer["control groups"]
    assert (
        line["health"] == "warn"
        and "rlimits only" in line["found"]
        and "Read-only file system" in line["found"]
        and "Delegate=yes" in line["advice"]
    )
    assert answer["a trial"]["health"] == "ok" and answer.code == 0


def test_below_an_ordinary_control_group(folders):
    """The kernel would share a core evenly between side tasks and a training outside of the group."""
    base = next(
        pathlib.Path(mount)
        for mount in cgroup_mounts()
        if (pathlib.Path(mount) / "cgroup.procs").exists()
        and (
            mount.endswith("/cpu")
            or "cpu" in mount.rsplit("/", 1)[1].split(",")
            or "cpu"
            in (
                (pathlib.Path(mount) / "cgroup.controllers").read_text()
                if (pathlib.Path(mount) / "cgroup.controllers").exists()
                else ""
            )
        )
    )
    group = base / f"freeride-doctor-test-{os.getpid()}"
    group.mkdir()
    try:
        answer = doctor(folders, before=["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"'])
        line = answer["share of a core"]
        assert line["health"] == "warn" and group.name in line["found"], line
        (group / "cpu.idle").write_text("1")
        assert (
            doctor(folders, before=["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"'])["share of a core"][
                "health"
            ]
            == "ok"
        )
    finally:
        group.rmdir()


def test_a_kernel_that_waits_for_one_word_only(folders):
    script = pathlib.Path(__file__).parents[1] / "rig/without_futex_waitv.py"
    answer = doctor(folders, before=[sys.executable, "-B", str(script)])
    assert answer["futex_waitv"]["health"] == "warn" and "5.16" in answer["futex_waitv"]["advice"]
    assert answer.code == 0


def test_no_real_time(folders):
    answer = doctor(folders, before=["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"])
    assert answer["real time"]["health"] == "warn" and "CAP_SYS_NICE" in answer["real time"]["advice"]
    assert answer.code == 0


def test_little_shared_memory(folders):
    answer = doctor(
        folders, before=[*PRIVATE, 'mount --make-rprivate / && mount -t tmpfs -o size=1m none /dev/shm && exec "$@"']
    )
    assert answer["/dev/shm"]["health"] == "warn" and "1 MiB of 1 MiB" in answer["/dev/shm"]["found"]
    assert answer.code == 0


def test_few_descriptors(folders):
    answer = doctor(folders, before=["prlimit", "--nofile=256"])
    assert answer["open files"]["health"] == "warn" and answer["open files"]["found"] == "256 a process"


def test_folders_of_somebody_else(folders):
    answer = doctor(folders, before=["setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups"])
    assert answer.code == 1
    for name in ("run folder", "state folder"):
        assert answer[name]["health"] == "missing" and "uid 4711" in answer[name]["found"], answer[name]


def test_open_folders_and_sockets(folders):
    import socket

    pathlib.Path(folders["FREERIDE_RUN_DIR"]).chmod(0o777)
    listener = socket.socket(socket.AF_UNIX)
    path = pathlib.Path(folders["FREERIDE_RUN_DIR"]) / "commands.sock"
    listener.bind(str(path))
    path.chmod(0o666)
    answer = doctor(folders)
    assert answer["run folder"]["health"] == "warn" and "chmod go-w" in answer["run folder"]["advice"]
    assert answer["sockets"]["health"] == "warn" and "commands.sock" in answer["sockets"]["found"]
    path.chmod(0o660)  # of the operator's group
    assert doctor(folders)["sockets"]["health"] == "ok"
    path.chmod(0o666)
    worker = path.with_name("worker-cpu-0.sock")
    path.rename(worker)  # of root's: trainings of every user come to it
    assert doctor(folders)["sockets"]["health"] == "ok"
    os.chown(worker, 4711, 4711)
    assert doctor(folders)["sockets"]["health"] == "warn"
    listener.close()


# ---- GPUs, with a driver that the test plays ----
GPU = "GPU-5e1f"


@pytest.fixture
def gpu(tmp_path):
    """A GPU that is as `say()` says, and an MPS control program on a PATH of its own."""
    programs = tmp_path / "programs"
    programs.mkdir()
    shutil.copy("/bin/sleep", programs / "nvidia-cuda-mps-control")
    state = tmp_path / "gpu"

    class Host:
        env = {
            "LD_LIBRARY_PATH": str(BUILD / "fake-driver"),
            "FREERIDE_FAKE_GPU": str(state),
            "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps"),
        }
        path = f"{programs}:{os.environ['PATH']}"

        @staticmethod
        def say(*lines):
            state.write_text(
                "\n".join([f"uuid {GPU}", "name H200", f"total {80 << 30}", f"used {1 << 30}", "mode 0", *lines]) + "\n"
            )

    Host.programs, Host.pipes = programs, tmp_path / "mps"
    Host.say()
    return Host


def test_a_gpu_that_serves(folders, gpu):
    answer = doctor(folders, "--device", GPU, path=gpu.path, **gpu.env)
    assert answer.code == 0 and answer["driver"]["found"].startswith("1 GPU")
    assert answer[GPU]["health"] == "ok" and answer[GPU]["found"].startswith("H200: compute mode DEFAULT"), answer[GPU]


def test_no_driver(folders):
    assert doctor(folders)["driver"]["health"] == "ok"
    answer = doctor(folders, "--device", GPU)
    assert (
        answer.code == 1 and answer["driver"]["health"] == "missing" and "no NVIDIA driver" in answer["driver"]["found"]
    )


def test_exclusive_process_matters_to_the_worker_of_that_gpu(folders, gpu):
    gpu.say("mode 3")
    line = doctor(folders, "--device", GPU, path=gpu.path, **gpu.env)[GPU]
    assert (
        line["health"] == "missing"
        and "EXCLUSIVE_PROCESS" in line["found"]
        and f"nvidia-smi -i {GPU} -c DEFAULT" in line["advice"]
    )
    answer = doctor(folders, "--device", "cpu-0", path=gpu.path, **gpu.env)
    assert answer[GPU]["health"] == "warn" and answer.code == 0


def test_no_mps_control_program(folders, gpu):
    line = doctor(folders, "--device", GPU, **gpu.env)[GPU]
    assert line["health"] == "missing" and "no MPS control program" in line["found"]


def test_somebody_elses_mps(folders, gpu):
    gpu.pipes.mkdir()
    daemon = subprocess.Popen([gpu.programs / "nvidia-cuda-mps-control", str(WATCHDOG_S)])
    try:
        (gpu.pipes / "nvidia-cuda-mps-control.pid").write_text(f"{daemon.pid}\n")
        line = doctor(folders, "--device", GPU, path=gpu.path, **gpu.env)[GPU]
        assert (
            line["health"] == "missing"
            and f"somebody else's MPS is running (pid {daemon.pid}" in line["found"]
            and "echo quit" in line["advice"]
        )
    finally:
        daemon.kill()
        daemon.wait()
    assert doctor(folders, "--device", GPU, path=gpu.path, **gpu.env)[GPU]["health"] == "ok"


def test_a_gpu_that_is_not_there(folders, gpu):
    answer = doctor(folders, "--device", "GPU-0000", path=gpu.path, **gpu.env)
    assert answer.code == 1 and f"there are: {GPU}" in answer["GPU-0000"]["found"] and answer[GPU]["health"] == "ok"


def test_no_worker_program_beside_ctl(tmp_path):
    shutil.copy(CTL, tmp_path / "freeride-ctl")
    done = subprocess.run(
        [tmp_path / "freeride-ctl", "doctor"],
        env={**os.environ, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1 and "freeride-worker is neither" in done.stderr
