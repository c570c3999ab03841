"""Programs that were never written for FreeRide, as side tasks: in sandboxes, in the bubbles of a training and on an
idle device, with child processes, exit codes, signals, and everything that tries to get away."""

import gzip
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from rig.testing import BUILD, System, until

PYTHON = "/usr/bin/python3"
HAS_TORCH = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def place(opened):
    """A folder that the operator has opened."""
    opened.chmod(0o777)
    return opened


@pytest.fixture
def system(place):
    with System() as running:
        running.start_manager("--default-memory-mib", "1024")
        running.start_worker("cpu-0", "--data", place, "--stop-ms", 6000)
        running.wait_workers(1)
        yield running


def submit(system, *words, timeout=300, **options):
    """`freeride-ctl submit` with these words; the device may be idle."""
    return subprocess.run(
        [str(BUILD / "bin/freeride-ctl"), "submit", "--when-idle", *map(str, words)],
        env=system.env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )


def start(system, name, script, *flags):
    """A shell script as a task, not waited for."""
    done = submit(system, "--name", name, "--no-wait", *flags, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr


def log_of(system, name):
    return subprocess.run(
        [str(BUILD / "bin/freeride-ctl"), "logs", name], env=system.env, capture_output=True, text=True, check=False
    ).stdout


def wait_log(system, name, text):
    until(lambda: text in log_of(system, name), f"{name} prints {text}")


def processes_with(text):
    """Numbers of the programs' processes on this host whose environment or command line has `text`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            ours = (entry / "comm").read_text().strip() in ("bwrap", "freeride-runner", "freeride-ctl")
        except OSError:
            continue
        if text.encode() in words and state != "Z" and not ours:
            found.append(int(entry.name))
    return found


def cpu_ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_its_output_and_exit_code_are_those_of_submit(system):
    done = submit(system, "--name", "echoes", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert done.returncode == 7
    assert done.stdout.splitlines() == ["out", "err"]  # one log
    assert "task echoes failed: exited with code 7" in done.stderr
    verdict = system.info("echoes")["state"]["verdict"]
    assert (verdict["kind"], verdict["cause"], verdict["exit_code"]) == ("failed", "exit", 7)
    assert submit(system, "--", "true").returncode == 0
    info = system.info("true")
    assert info["state"]["verdict"]["kind"] == "finished" and info["load"]["program"] == ["true"]


def test_a_signal_is_told_as_a_shell_tells_it(system):
    done = submit(system, "--name", "hit", "--", "sh", "-c", "kill -SEGV $$")
    assert done.returncode == 128 + signal.SIGSEGV
    verdict = system.info("hit")["state"]["verdict"]
    assert (verdict["kind"], verdict["signal"]) == ("crashed", signal.SIGSEGV)


def test_what_cannot_be_started_is_said_in_a_sentence(system, place):
    done = submit(system, "--", "no-such-program-here")
    assert done.returncode == 5
    assert "there is no program 'no-such-program-here' on its worker's PATH" in done.stderr
    hidden = place / "tool.sh"
    hidden.write_text("#!/bin/sh\necho it runs\n")
    hidden.chmod(0o755)
    done = submit(system, "--", hidden)
    assert done.returncode == 5 and str(hidden) in done.stderr and "--read" in done.stderr
    if os.geteuid() == 0:
        done = submit(system, "--read", hidden, "--", hidden)
        assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr
    done = submit(system, "--", PYTHON, hidden)  # the program itself does not find it
    assert done.returncode == 2 and f"its sandbox does not show {hidden} of the host" in done.stderr
    for words, said in [
        (["--", "sh", "-c", "x" * 70_000], "arguments"),
        (["--name", "no/name", "--", "true"], "will not do"),
    ]:
        done = submit(system, *words)
        assert done.returncode == 2 and said in done.stderr


def test_gzip_over_a_tree(system, place):
    tree = place / "tree"
    for number in range(20):
        (tree / str(number % 4)).mkdir(parents=True, exist_ok=True)
        (tree / str(number % 4) / f"{number}.txt").write_text(f"line {number}\n" * 20_000)
    done = submit(system, "--write", tree, "--", "gzip", "-r", tree)
    assert done.returncode == 0, done.stderr
    packed = sorted(tree.rglob("*.gz"))
    assert len(packed) == 20 and not list(tree.rglob("*.txt"))
    assert gzip.decompress((tree / "3/7.txt.gz").read_bytes()).decode() == "line 7\n" * 20_000


def test_a_shell_pipeline(system):
    done = submit(
        system, "--", "sh", "-c", "seq 1 200000 | sort -rn | awk '{ s += $1 } END { print s / 1e5, NR }' | cat"
    )
    assert (done.returncode, done.stdout) == (0, "200001 200000\n"), done.stderr


POOL = """
import multiprocessing, os, subprocess
def work(n):
    return sum(i * i for i in range(n))
if __name__ == "__main__":
    with multiprocessing.Pool(3) as pool:
        print(sum(pool.map(work, range(2000, 2060))))
    print(subprocess.run(["echo", "from a child"], capture_output=True, text=True).stdout.strip())
    subprocess.Popen(["true"], start_new_session=True).wait()
    print("done", flush=True)
"""


def test_a_python_script_with_child_processes(system):
    done = submit(system, "--", PYTHON, "-c", POOL)
    total = sum(sum(i * i for i in range(n)) for n in range(2000, 2060))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [str(total), "from a child", "done"]


TRAINING = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        x = torch.full((8,), i / 64)
        return x, x.sum()
if __name__ == "__main__":
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for x, y in torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x)[:, 0], y)
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.6f}")
"""


@pytest.mark.skipif(not HAS_TORCH, reason="/usr/bin/python3 has no torch")
def test_a_training_with_data_loader_processes_has_the_same_result(system):
    plain = subprocess.run([PYTHON, "-c", TRAINING], capture_output=True, text=True, check=True).stdout
    done = submit(system, "--memory", "2GiB", "--", PYTHON, "-c", TRAINING)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == plain.splitlines()[-1]


@pytest.mark.skipif(not HAS_TORCH, reason="a training is needed")
def test_in_bubbles_nothing_of_it_executes_between_leases(system):
    system.start_worker("cpu-1")
    system.start_training(stages=2, micro_batches=4)
    system.wait_workers(2, trained=True)
    start(
        system,
        "busy",
        "(while :; do :; done) & setsid sh -c 'while :; do :; done' & while :; do :; done",
        "--stage",
        "0",
        "--env",
        "MARK=freeride-busy-test",
    )
    system.wait_steps("busy", more=10)
    system.ok("pause", "busy")
    # Once it is paused for good, every process of it is stopped, and no clock of any moves.
    mine = until(lambda: [pid for pid in processes_with("freeride-busy-test") if cpu_ticks(pid) > 0], "its processes")
    until(
        lambda: all(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T" for pid in mine),
        "all are stopped",
    )
    before = [cpu_ticks(pid) for pid in mine]
    system.wait_iterations(more=3)
    assert [cpu_ticks(pid) for pid in mine] == before
    system.ok("resume", "busy")
    system.wait_steps("busy", more=5)
    counters = system.task("busy")["counters"]
    assert counters["harvested_ns"] > 0
    assert [verdict["kind"] for verdict in system.stop_tasks("busy")] == ["stopped"]
    assert processes_with("freeride-busy-test") == []


@pytest.mark.skipif(not HAS_TORCH, reason="a training is needed")
def test_ffmpeg_in_bubbles_makes_the_same_video(system):
    frames = "testsrc2=size=320x180:rate=25:duration=8"
    encode = ["ffmpeg", "-nostdin", "-v", "error", "-f", "lavfi", "-i", frames, "-threads", "3", "-c:v", "libx264"]
    encode += ["-f", "md5", "-"]
    plain = subprocess.run(encode, capture_output=True, text=True, check=True).stdout
    system.start_worker("cpu-1")
    system.start_training(stages=2, micro_batches=4)
    system.wait_workers(2, trained=True)
    done = submit(system, "--name", "video", "--stage", "0", "--", *encode)
    assert (done.returncode, done.stdout) == (0, plain), done.stderr
    assert system.task("video")["counters"]["harvested_ns"] > 0


def test_ctrl_c_detaches_and_the_task_goes_on(system):
    process = subprocess.Popen(
        [str(BUILD / "bin/freeride-ctl"), "submit", "--when-idle", "--name", "long", "--", "sh", "-c"]
        + ["echo begun; sleep 3600"],
        env=system.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_log(system, "long", "begun")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "detached; task long goes on: freeride-ctl logs -f long, or freeride-ctl stop long" in said
    assert system.task("long")["state"] != "STOPPED"
    assert [verdict["kind"] for verdict in system.stop_tasks("long")] == ["stopped"]


def test_sigterm_before_sigkill(system):
    start(system, "polite", "trap 'echo saving; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
    start(system, "deaf", "trap '' TERM; echo ready; while :; do sleep 0.01; done")
    for name in ("polite", "deaf"):
        wait_log(system, name, "ready")
    polite, deaf = system.stop_tasks("polite", "deaf")
    assert (polite["kind"], polite["exit_code"]) == ("stopped", 0) and "saving" in log_of(system, "polite")
    assert (deaf["kind"], deaf["cause"]) == ("stopped", "order")


def test_stopped_at_any_moment_of_its_start(system):
    for number in range(8):
        name = f"early-{number}"
        start(system, name, "true; exec sh -c 'exec sleep 3600'", "--env", "MARK=freeride-early-test")
        for _ in range(number):
            system.ctl("status")  # some milliseconds
        system.ok("stop", name)
        assert system.wait_verdict(name)["kind"] == "stopped"
    assert processes_with("freeride-early-test") == []


def test_what_runs_away_dies_with_it(system):
    script = "setsid sh -c 'sh -c \"sleep 3600\" & ' & (sleep 3600 &) ; sh -c 'nohup sleep 3600 >/dev/null 2>&1 &'"
    done = submit(system, "--env", "MARK=freeride-escape-test", "--", "sh", "-c", script + "; echo gone")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "gone")
    assert processes_with("freeride-escape-test") == []


def test_a_fork_bomb_is_bounded(system):
    bomb = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.01)\n"
    done = submit(system, "--name", "bomb", "--no-wait", "--env", "MARK=freeride-bomb-test", "--", PYTHON, "-c", bomb)
    assert done.returncode == 0, done.stderr
    until(lambda: len(processes_with("freeride-bomb-test")) > 50, "it forks")
    assert len(processes_with("freeride-bomb-test")) <= 256 + 8  # --task-pids
    system.ok("stop", "bomb")
    assert system.wait_verdict("bomb")["kind"] in ("stopped", "overran")
    assert processes_with("freeride-bomb-test") == []


def test_a_call_that_mpi_and_crash_reporters_try_fails_and_ends_nobody(system):
    tries = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
for call in (lambda: libc.process_vm_readv(os.getpid(), None, 0, None, 0, 0), lambda: libc.ptrace(0, 0, 0, 0)):
    assert call() == -1 and ctypes.get_errno() == errno.EPERM
"""
    done = submit(system, "--", PYTHON, "-c", tries)
    assert done.returncode == 0, done.stdout + done.stderr


def test_restarted_when_it_fails(system):
    done = submit(system, "--name", "again", "--restart", "on-failure:1", "--", "sh", "-c", "echo try; exit 3")
    assert done.returncode == 3
    assert system.info("again")["failures"] == 1


def test_a_worker_that_ends_leaves_nothing(system):
    start(system, "left", "sleep 3600 & setsid sleep 3600 & echo ready; wait", "--env", "MARK=freeride-left-test")
    wait_log(system, "left", "ready")
    system.kill("worker-cpu-0")
    until(lambda: processes_with("freeride-left-test") == [], "its processes are gone")


GPU = "GPU-11111111-2222-3333-4444-555555555555"
GATED = """
head -c 8 "$FREERIDE_LEASE_PAGE"; echo
wc -c < "$FREERIDE_SHIM_PAGE"
(: >> "$FREERIDE_LEASE_PAGE") 2>/dev/null && echo writable
: >> "$FREERIDE_SHIM_PAGE" && echo counters
cmp "$1" "$2" && echo in place
[ "$(head -c 4 "$FREERIDE_SHIM_REAL" | tail -c 3)" = ELF ] && ! cmp -s "$FREERIDE_SHIM_REAL" "$2" && echo real
"""


OTHER_DRIVER = """
cp /lib/x86_64-linux-gnu/libz.so.1 libcuda.so.1 || cp /lib/aarch64-linux-gnu/libz.so.1 libcuda.so.1
"$1" -c 'import ctypes, time; held = ctypes.CDLL("./libcuda.so.1"); time.sleep(3600)'
"""


WORKLOAD = """
import os
from freeride_plugin import SideTask, Step

class Workload(SideTask):
    def RunNextStep(self):
        page = os.environ.get("FREERIDE_LEASE_PAGE")
        begin = open(page, "rb").read(8).decode() if page else ""
        print("shim", os.environ.get("FREERIDE_SHIM_PLUGIN"), begin, flush=True)
        return Step.FINISHED
"""


@pytest.mark.skipif(not (BUILD / "fake-driver/libcuda.so.1").exists(), reason="the played driver is not built")
def test_on_a_gpu_the_shim_is_where_the_driver_was(place):
    """On a played driver: the library in the driver's place, the real one beside it, pages by their names."""
    (place / "gpu").write_text(f"uuid {GPU}\nname FakeGPU\ntotal {80 << 30}\nused {1 << 30}\n")
    shim = place / "shim.so"
    shim.write_text("a library")
    driver = BUILD / "fake-driver"
    env = {"LD_LIBRARY_PATH": str(driver), "FREERIDE_FAKE_GPU": str(place / "gpu")}
    control = BUILD.parent.parent / "worker/gpu/fake_mps_control_test_support.py"
    flags = ["--mps-control", control, "--library-dir", driver, "--data", place, "--probe-one-in", 0]
    with System(outside_tmp=True) as running:
        running.start_manager("--default-memory-mib", "1024")
        # One that stands alone has no library beside it.
        alone = place / "freeride-worker"
        shutil.copy(running.tree.program("freeride-worker"), alone)
        words = [alone, "--device", GPU, "--runner", running.tree.program("freeride-runner")]
        running.start(f"worker-{GPU}", [*words, *running.tree.libraries(), *flags], env=env)
        running.wait_workers(1)
        done = submit(running, "--no-wait", "--name", "waits", "--", "true")
        assert done.returncode == 0, done.stderr
        until(lambda: "runs programs" in running.task("waits").get("reason", ""), "it says what it waits for")
        running.ok("stop", "waits")
        running.end(f"worker-{GPU}")
        running.start_worker(
            GPU, *flags, "--shim", shim, "--grace-ms", 60_000, "--hang-ms", 60_000, name="again", env=env
        )
        words = ["sh", "-c", GATED, "sh", driver.resolve() / "libcuda.so.1", shim]
        done = submit(running, "--read", shim, "--", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines() == ["FRRLEASE", "4096", "counters", "in place", "real"]
        # A libcuda of its own, as conda has one, would reach the GPU past the shim.
        words = ["sh", "-c", OTHER_DRIVER, "sh", PYTHON]
        done = submit(running, "--name", "conda", "--", *words)
        verdict = running.info("conda")["state"]["verdict"]
        assert (verdict["kind"], verdict["cause"]) == ("failed", "limits"), done.stdout + done.stderr
        assert "another libcuda, /scratch/libcuda.so.1" in verdict["reason"], verdict
        until(lambda: not list((running.run_dir / "pages").iterdir()), "its pages are gone")
        # A workload in Python is cut anywhere in its step, so it has the shim, too; what pauses between steps has not.
        task = place / "workload.py"
        task.write_text(WORKLOAD)
        for interface, said in (("imperative", "shim 1 FRRLEASE"), ("iterative", "shim None")):
            flags = ("--interface", interface, "--no-profile", "--when-idle", "--steps", 3)
            running.load(task, interface, *flags)
            assert running.wait_verdict(interface)["kind"] == "finished", running.info(interface)
            assert said in running.ctl("logs", interface).out, running.ctl("logs", interface).out
