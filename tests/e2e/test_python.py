"""Side tasks in Python: the whole way in a sandbox, and everything that goes wrong there."""

import os
import subprocess

import pytest
from test_python_check import COUNTER, EXAMPLES, IMPORT

from rig.testing import System, until


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
