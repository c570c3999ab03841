"""Side tasks in Python: the contract by `freeride-ctl plugin check`, the whole way in a sandbox, and everything that
goes wrong."""

import os
import subprocess

import pytest

from rig.testing import BUILD, SOURCE, System, until

EXAMPLES = SOURCE / "plugins" / "python"
IMPORT = "from freeride_plugin import *\n"
METHODS = ["CreateSideTask", "InitSideTask", "StartSideTask", "RunNextStep", "PauseSideTask", "StopSideTask"]
COUNTER = (
    IMPORT
    + """
class Counter(SideTask):
    "Counts its steps."
    by = Param(1, "step", (1, 9))
    def CreateSideTask(self):
        self.n = 0
    def RunNextStep(self):
        self.n += self.by
        self.metric("n", self.n)
    def SaveState(self):
        return str(self.n).encode()
    def RestoreState(self, version, state):
        self.n = int(state)
"""
)


def check(folder, text, *flags, name="task.py"):
    file = folder / name
    file.write_text(text)
    done = subprocess.run(
        [str(BUILD / "bin/freeride-ctl"), "plugin", "check", str(file), *flags],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_contract(tmp_path):
    code, text = check(tmp_path, COUNTER, "--param", "by=3")
    assert code == 0, text
    assert "counter 0: Counts its steps." in text and "by=1" in text
    assert "bytes of version 1, saved and restored" in text


@pytest.mark.parametrize("method", METHODS)
def test_raises_in_each_method(tmp_path, method):
    body = "" if method == "RunNextStep" else "    def RunNextStep(self): pass\n"
    code, text = check(
        tmp_path, f"{IMPORT}class T(SideTask):\n{body}    def {method}(self):\n        raise ValueError('boom')\n"
    )
    assert code == 5
    line = next(line for line in text.splitlines() if line.startswith("FAIL"))
    assert "ValueError: boom (line " in line and method in line, text
    assert "log: error Traceback" in text


@pytest.mark.parametrize(
    "text, says",
    [
        (IMPORT + "class T(SideTask)\n", "SyntaxError: "),
        (IMPORT + "class T(SideTask):\n  def RunNextStep(self): return 7\n", "it returned 7: RunNextStep returns"),
        (IMPORT + "class A(SideTask): pass\nclass B(SideTask): pass\n", "2 classes that inherit SideTask (A, B)"),
        (IMPORT + "x = 1\n", "no class that inherits freeride_plugin.SideTask"),
        (
            IMPORT + "import no_such_module\n",
            "ModuleNotFoundError: No module named 'no_such_module' (line 2); the Python is /usr/bin/python3",
        ),
        (IMPORT + "import sys\nsys.exit(3)\n", "SystemExit: 3"),
        (IMPORT + "class T(SideTask): pass\n", "the class has no RunNextStep()"),
        (IMPORT + "class T(SideTask):\n  def RunNextStep(self): raise MemoryError\n", "out_of_memory"),
        ("print('hello')\n", "does not import freeride_plugin"),
        ("", "is empty"),
    ],
)
def test_bad_files(tmp_path, text, says):
    code, out = check(tmp_path, text)
    assert code == 5 and says in out, out


def test_bad_parameters_and_interpreters(tmp_path):
    assert "parameter by=x: must be a whole number in 1..9" in check(tmp_path, COUNTER, "--param", "by=x")[1]
    assert "has no parameter 'of'" in check(tmp_path, COUNTER, "--param", "of=1")[1]
    assert (
        "there is no Python at /nowhere/bin/python3" in check(tmp_path, COUNTER, "--python", "/nowhere/bin/python3")[1]
    )
    assert "is not a path" in check(tmp_path, COUNTER, "--python", "python3")[1]
    static = tmp_path / "static"  # an installation whose interpreter was linked statically
    (static / "lib/python3.11").mkdir(parents=True)
    (static / "lib/python3.11/os.py").touch()
    (static / "bin").mkdir()
    (static / "bin/python3").write_bytes(b"")
    text = check(tmp_path, COUNTER, "--python", str(static / "bin/python3"))[1]
    assert "no shared library libpython3.11.so.1.0" in text and "--enable-shared" in text


QUEUED = (
    IMPORT
    + """
class Queue:
    marked = waited = everything = 0
    def mark(self):
        self.marked += 1
    def wait(self, all):
        self.waited += 1
        self.everything += bool(all)
        WAIT
class T(SideTask):
    def InitSideTask(self):
        self.queue, self.plain = Queue(), TorchQueue(self.torch_device)
    def RunNextStep(self):
        for _ in range(3):
            sum(range(20_000))
            self.yield_point(self.queue)
            self.yield_point(self.plain)
        assert self.queue.marked % 3 == 0 and self.queue.waited >= self.queue.marked // 2, vars(self.queue)
"""
)


@pytest.mark.parametrize("interface", ["iterative", "imperative"])
def test_yield_points_behind_queued_pieces(tmp_path, interface):
    flags = ("--steps", "6", *(("--param", "interface=imperative") if interface == "imperative" else ()))
    code, text = check(tmp_path, QUEUED.replace("WAIT", "pass"), *flags)
    assert code == 0, text
    code, text = check(tmp_path, QUEUED.replace("WAIT", "raise ValueError('no GPU')"), *flags)
    assert code == 5 and "ValueError: no GPU (line " in text and "RunNextStep" in text, text


PREPARED = (
    IMPORT
    + """
import threading
class T(SideTask):
    def InitSideTask(self):
        self.mine, self.prepared = threading.local(), 0
    def PrepareGpuWorkload(self):
        self.mine.kernels = "found"
        self.prepared += 1
        PREPARE
    def RunNextStep(self):
        assert self.prepared == 1 and self.mine.kernels == "found", (self.prepared, vars(self.mine))
        sum(range(20_000))
"""
)


def test_what_the_workload_prepares(tmp_path):
    """Once, in the workload's own thread, whose locals stay; a failure is InitSideTask's."""
    flags = ("--steps", "6", "--param", "interface=imperative")
    code, text = check(tmp_path, PREPARED.replace("PREPARE", "self.pass_gate()"), *flags)
    assert code == 0, text
    code, text = check(tmp_path, PREPARED.replace("PREPARE", "raise ValueError('boom')"), *flags)
    assert code == 5 and "ValueError: boom (line " in text and "InitSideTask" in text, text
    assert (
        "AssertionError" in check(tmp_path, PREPARED.replace("PREPARE", "pass"), "--steps", "6")[1]
    )  # nobody prepares steps


@pytest.mark.parametrize("mode", [True, False])
def test_the_workload_keeps_what_torch_was_told(tmp_path, mode):
    """torch keeps its grad mode for each thread, and a workload's is not the one of InitSideTask()."""
    text = f"""{IMPORT}
import torch
class T(SideTask):
    def InitSideTask(self):
        torch.set_grad_enabled({mode})
    def RunNextStep(self):
        assert torch.is_grad_enabled() is {mode}
        sum(range(20_000))
"""
    code, said = check(tmp_path, text, "--steps", "6", "--param", "interface=imperative")
    assert code == 0, said


def test_python_without_torch(tmp_path):
    """The file names no package's maker: the line has to say which Python lacks what."""
    venv = tmp_path / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
    for example in ("tiny_net.py", "resnet18.py"):
        code, text = check(tmp_path, (EXAMPLES / example).read_text(), "--python", str(venv / "bin/python"))
        line = next(line for line in text.splitlines() if line.startswith("FAIL"))
        assert code == 5 and "No module named 'torch'" in line and f"the Python is {venv}" in line, text


def test_a_thread_stands_still_while_paused(tmp_path):
    code, text = check(
        tmp_path,
        IMPORT
        + """
import threading
class T(SideTask):
    def InitSideTask(self):
        threading.Thread(target=self.spin, daemon=True).start()
    def spin(self):
        while True:
            pass
    def RunNextStep(self):
        sum(range(1000))
""",
        "--steps",
        "6",
    )
    assert "executes though it is paused" not in text, text
    assert "nothing executes afterwards" in text


@pytest.fixture(scope="module")
def system():
    """Manager and one worker with its sandbox; side tasks run because they may when nobody trains."""
    with System() as running:
        running.start_manager("--profile-timeout-ms", 600_000)
        # Importing PyTorch takes seconds of CPU time, of which a side task gets what is left over.
        running.start_worker(
            "cpu-0", "--create-ms", 300_000, cores=f"0-{os.cpu_count() - 1}", env={"OPENBLAS_NUM_THREADS": "2"}
        )
        until(lambda: running.ok("workers")["workers"], "the worker registers")
        yield running


def load(system, text, name, *flags):
    file = system.root / f"{name}.py"
    file.write_text(text)
    return system.ctl("load", file, "--name", name, "--when-idle", "--memory", "1GiB", *flags)


AT_HOME = (
    IMPORT
    + """
import getpass, grp, os, pathlib, pwd, tempfile
class T(SideTask):
    def CreateSideTask(self):
        me = pwd.getpwuid(os.getuid())
        assert getpass.getuser() == me.pw_name and grp.getgrgid(os.getgid()).gr_name, me
        assert os.environ["HOME"] == me.pw_dir == os.path.expanduser(f"~{me.pw_name}"), me
        cache = pathlib.Path.home() / ".cache" / "library"
        cache.mkdir(parents=True)
        (cache / "kernel").write_text("compiled")
        tempfile.TemporaryFile().write(b"x")
    def RunNextStep(self):
        sum(range(1000))
"""
)


def test_the_sandbox_is_what_libraries_expect(system):
    """A name, a home and a group for its user number, and caches that may be written."""
    assert load(system, AT_HOME, "at-home").code == 0
    system.wait_steps("at-home")
    system.ok("stop", "at-home")
    assert system.wait_verdict("at-home")["kind"] == "stopped"


def test_runs_and_moves_in_a_sandbox(system):
    assert load(system, COUNTER, "moves", "--param", "by=2").code == 0
    system.wait_steps("moves")
    counters = system.task("moves")["counters"]
    assert counters["metrics"]["n"] > 0
    next_one = system.root / "next.py"
    next_one.write_text(COUNTER + "\n# another content\n")
    assert system.ctl("load", next_one, "--replace", "moves", "--yes", timeout=60).code == 0
    before = counters["metrics"]["n"]
    until(lambda: system.task("moves")["counters"]["metrics"].get("n", 0) > before, "it goes on from where it was")
    system.ok("stop", "moves")
    assert system.wait_verdict("moves")["kind"] == "stopped"


def test_environments(system, tmp_path_factory):
    """A package that only a virtual environment has, in a place that no sandbox shows by itself."""
    venv = system.root / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
    site = next((venv / "lib").glob("python3.*/site-packages"))
    (site / "only_here.py").write_text("N = 42\n")
    task = IMPORT + "import only_here\nclass T(SideTask):\n  def RunNextStep(self): self.metric('n', only_here.N)\n"
    assert load(system, task, "venv", "--python", venv / "bin/python").code == 0
    system.wait_steps("venv")
    assert system.task("venv")["counters"]["metrics"]["n"] == 42
    system.ok("stop", "venv")
    system.wait_verdict("venv")
    assert load(system, task, "plain").code == 0
    verdict = system.wait_verdict("plain")
    assert verdict["kind"] == "rejected" and "No module named 'only_here'" in verdict["reason"], verdict
    assert load(system, (EXAMPLES / "tiny_net.py").read_text(), "bare", "--python", venv / "bin/python").code == 0
    verdict = system.wait_verdict("bare")
    assert verdict["kind"] == "rejected" and "No module named 'torch'" in verdict["reason"], verdict
    assert load(system, task, "none", "--python", "/nowhere/python").code == 0
    verdict = system.wait_verdict("none")
    assert verdict["kind"] == "rejected" and "there is no Python at /nowhere/python" in verdict["reason"], verdict


def test_what_fails_in_a_sandbox(system):
    raises = IMPORT + "class T(SideTask):\n  def RunNextStep(self):\n    raise ValueError('boom')\n"
    assert load(system, raises, "raises").code == 0
    verdict = system.wait_verdict("raises")
    assert (verdict["kind"], verdict["transition"]) == ("failed", "RunNextStep") and "boom (line 4)" in verdict[
        "reason"
    ], verdict
    forks = IMPORT + "import os\nclass T(SideTask):\n  def RunNextStep(self):\n    os.fork()\n"
    assert load(system, forks, "forks").code == 0
    assert "Operation not permitted" in system.wait_verdict("forks")["reason"]


def test_a_path_that_the_sandbox_does_not_show(system):
    hidden = system.root / "list.txt"
    hidden.write_text("there on the host")
    task = IMPORT + f"class T(SideTask):\n  def CreateSideTask(self): open('{hidden}')\n  def RunNextStep(self): pass\n"
    assert load(system, task, "hidden").code == 0
    reason = system.wait_verdict("hidden")["reason"]
    assert f"its sandbox does not show {hidden} of the host: load it with --read {hidden}" in reason, reason


def test_caches_lie_in_the_scratch_folder(system):
    task = (
        IMPORT
        + """
import os
class T(SideTask):
    def RunNextStep(self):
        for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR"):
            os.makedirs(os.environ[name], exist_ok=True)
            assert os.environ[name].startswith(self.scratch_dir), name
        assert os.environ["TRANSFORMERS_OFFLINE"] == "1"
"""
    )
    assert load(system, task, "caches", "--steps", "3").code == 0
    assert system.wait_verdict("caches")["kind"] == "finished"


def test_a_package(system):
    """A folder: its modules, its data, and one class in it."""
    folder = system.root / "greet"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .task import Greet\n")
    (folder / "inner" / "__init__.py").write_text("def length(data):\n    return len(data)\n")
    (folder / "data.bin").write_bytes(bytes(range(256)))
    (folder / "task.py").write_text(
        IMPORT
        + "import pkgutil\nfrom .inner import length\n"
        + "class Greet(SideTask):\n  def RunNextStep(self):\n"
        + "    self.metric('n', length(pkgutil.get_data('greet', 'data.bin')))\n"
    )
    assert system.ctl("load", folder, "--name", "greet", "--when-idle", timeout=60).code == 0
    system.wait_steps("greet")
    assert system.task("greet")["counters"]["metrics"]["n"] == 256
    assert system.task("greet")["plugin"] == "greet.py"
    system.ok("stop", "greet")
    system.wait_verdict("greet")
    (folder / "__init__.py").unlink()
    answer = system.ctl("load", folder, "--name", "none")
    assert answer.code == 2 and "is no Python package: it has no __init__.py" in answer.err, answer


def test_a_math_librarys_threads_sleep_after_their_work(system):
    """They would look for more for a tenth of a second, and the task be killed for what executes while it is paused."""
    task = (
        IMPORT
        + """
import os
import time
import numpy
class T(SideTask):
    def InitSideTask(self):
        self.a = numpy.ones((600, 600))
    def RunNextStep(self):
        self.a = numpy.dot(self.a, self.a) / 600
        self.metric("threads", len(os.listdir("/proc/self/task")))
        before = time.process_time()
        time.sleep(0.04)
        self.metric("awake_ms", 1000 * (time.process_time() - before))
"""
    )
    assert load(system, task, "blas", "--steps", "5").code == 0
    assert system.wait_verdict("blas")["kind"] == "finished"
    metrics = system.task("blas")["counters"]["metrics"]
    assert metrics["threads"] == 2, metrics
    assert metrics["awake_ms"] < 20, metrics


def test_trains_a_model(system):
    """PyTorch in the sandbox: the system's, as for the training itself."""
    assert load(system, (EXAMPLES / "tiny_net.py").read_text(), "net", "--steps", "40").code == 0
    verdict = system.wait_verdict("net")
    assert verdict["kind"] == "finished", verdict
    assert system.task("net")["counters"]["metrics"]["loss"] < 2


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda f: f.name)
def test_examples_are_short(file):
    lines = [
        line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith(("#", '"'))
    ]
    ours = [
        line
        for line in lines
        if any(
            w in line
            for w in (
                "freeride_plugin",
                "SideTask",
                "RunNextStep",
                "Param(",
                "torch_device",
                "metric",
                "yield_point",
                "State(",
                "scratch",
            )
        )
    ]
    assert len(lines) <= 30 and len(ours) <= 12, (len(lines), ours)


def test_imperative_interface(system):
    """RunGpuWorkload as it comes with the class: the same steps, in a process that is stopped whenever it has no
    lease."""
    assert load(system, COUNTER, "workload", "--interface", "imperative").code == 0
    until(
        lambda: system.task("workload").get("counters", {}).get("metrics", {}).get("steps", 0) > 5,
        "the workload goes on",
    )
    system.ok("pause", "workload")
    system.wait_state("workload", "PAUSED")

    def steps():
        return system.task("workload")["counters"]["metrics"]["steps"]

    before = until(lambda: (lambda a, b: a if a == b else 0)(steps(), steps()), "it stands still")
    system.ok("resume", "workload")
    until(lambda: steps() > before, "it goes on after a pause")
    system.ok("stop", "workload")
    assert system.wait_verdict("workload")["kind"] == "stopped"


KEEPS_THE_LOCK = (
    IMPORT
    + """
class Long(SideTask):
    def RunNextStep(self):
        sum(range(20_000_000))  # one call into C, which gives the interpreter's lock to nobody
"""
)


def test_a_long_call_is_stopped_in_its_middle():
    """A library's call that is longer than a bubble and its grace, and keeps the interpreter's lock: nothing of the
    task's own has to be called at a bubble's end, so it is stopped and goes on in the next ones."""
    with System() as training:
        training.start_manager("--profile-timeout-ms", 600_000)
        training.start_worker("cpu-0")
        training.start_training(stages=2)
        training.wait_iterations()
        file = training.root / "long.py"
        file.write_text(KEEPS_THE_LOCK)
        training.load(file, "long", "--stage", 0, "--memory", "1GiB", "--interface", "imperative")

        def counted():
            state = training.task("long")
            assert not state.get("verdict", {}).get("kind"), state["verdict"]
            counters = state.get("counters", {})
            return counters if counters.get("metrics", {}).get("steps", 0) > 2 else None

        counters = until(counted, "long calls end", 120)
        assert counters["leases"] > 3 * counters["metrics"]["steps"], counters  # several bubbles each
        assert training.stop_tasks("long")[0]["kind"] == "stopped"
