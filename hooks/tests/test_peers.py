"""tests/peers/run.py on a suite of three small tests: it compares which pass, and fails when the hook changes that."""

import importlib.metadata
import subprocess
import sys

import pytest

import support

HERE = support.SOURCE / "hooks/tests/peers"
sys.path.insert(0, str(HERE))

import run  # noqa: E402

# As a framework's tests: one that passes, one that fails, one that starts a process of its own.
TESTS = """
import os, subprocess, sys

def test_of_a_child():
    subprocess.run([sys.executable, "-c", "import os"], check=True)

def test_that_fails():
    assert False
"""
NOTICES_THE_HOOK = """
def test_that_notices():
    assert not any(os.path.basename(folder).endswith("start") for folder in sys.path)
"""
RUN_ONE = """
import pathlib, sys
sys.path.insert(0, sys.argv.pop(1))
import run
run.PIPELINING = run.Suite("torch", "pytest", "of/suite", "{}", ("tests",), ("tests/test_*.py",))
run.START = pathlib.Path(sys.argv.pop(1))
sys.exit(run.main())
"""


def compare(folder, tests, start=run.START):
    """Compares the suite of `tests` on this Python, as `make test-peers` compares a framework's: (exit code, what was printed)."""
    checkout = folder / f"sources/suite-{importlib.metadata.version('pytest')}/tests"
    if tests is not None:
        checkout.mkdir(parents=True)
        (checkout / "test_small.py").write_text(tests)
    programs = folder / "venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python").chmod(0o755)
    where = [
        "--venv",
        folder / "venv",
        "--out",
        folder / "out",
        "--sources",
        folder / "sources",
        "--git",
        folder / "none",
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUN_ONE, str(HERE), str(start), *map(str, where), "--only", "torch"],
        capture_output=True,
        text=True,
        timeout=support.WATCHDOG,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_equal_passes(tmp_path):
    code, said = compare(tmp_path, TESTS)
    assert code == 0 and said.splitlines()[1].split()[2:] == ["2", "1", "1", "0", "0", "equal"], said


def test_a_test_that_the_hook_breaks(tmp_path):
    code, said = compare(tmp_path, TESTS + NOTICES_THE_HOOK)
    assert code == 1 and said.splitlines()[1].split()[2:] == ["3", "1", "2", "0", "0", "differ"], said
    assert "test_that_notices: hooked failure, unhooked passed" in said


@pytest.mark.parametrize("tests", [None, "import no_such_module\n", "import os\nos._exit(7)\n"])
def test_what_could_not_be_compared_is_no_success(tmp_path, tests):
    """No sources, no test that can be imported, a process that dies."""
    code, said = compare(tmp_path, tests)
    assert code == 3, said
    assert "cannot be cloned" in said or "no test passes" in said, said


def test_a_hook_that_is_not_there_is_no_success(tmp_path):
    code, said = compare(tmp_path, TESTS, start=tmp_path)
    assert code == 2 and "no process would have the hook" in said, said
