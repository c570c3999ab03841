"""Side tasks in Python: the contract, by `freeride-ctl plugin check`."""

import subprocess

import pytest

from rig.testing import BUILD, SOURCE

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
