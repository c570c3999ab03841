"""scripts/second-try.py: what fails once is tried again and counted, what fails twice fails, and two are the most."""

import pathlib
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/second-try.py"
FLAKY = "if [ -e {0} ]; then exit 0; fi; touch {0}; exit 1"


@pytest.fixture
def suite(tmp_path):
    """Runs a suite of these names and shell commands; their exit code and output."""

    def run(**tests):
        lines = (f'add_test({name} "sh" "-c" [=[{command}]=])\n' for name, command in tests.items())
        (tmp_path / "CTestTestfile.cmake").write_text("".join(lines))
        command = [SCRIPT, tmp_path / "table", "ctest", "--test-dir", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    return run


def table(tmp_path):
    done = subprocess.run([SCRIPT, tmp_path / "table"], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_what_passes_is_run_once(suite, tmp_path):
    assert suite(good=f"echo run >> {tmp_path}/runs")[0] == 0
    assert (tmp_path / "runs").read_text() == "run\n"
    assert table(tmp_path) == (0, "second tries: 0, at most 2\n")


def test_a_second_try_counts_and_is_named(suite, tmp_path):
    code, _ = suite(flaky=FLAKY.format(tmp_path / "been"), good=f"echo run >> {tmp_path}/runs")
    assert code == 0
    assert (tmp_path / "runs").read_text() == "run\n"  # what passed is not run again
    assert table(tmp_path) == (0, "second tries: 1, at most 2:\n  flaky\n")


def test_what_fails_twice_fails(suite, tmp_path):
    assert suite(bad="exit 1", good="exit 0")[0] != 0


def test_more_than_two_of_all_runs_fail_without_another_try(suite, tmp_path):
    assert suite(one=FLAKY.format(tmp_path / "1"), two=FLAKY.format(tmp_path / "2"))[0] == 0
    code, said = suite(three=FLAKY.format(tmp_path / "3"))
    assert code != 0
    assert "second tries: 3, at most 2:\n  one\n  two\n  three\n" in said
    assert table(tmp_path)[0] == 1


def test_a_failure_of_an_earlier_run_is_not_tried_again(suite, tmp_path):
    assert suite(bad="exit 1")[0] != 0
    (tmp_path / "table").unlink()
    assert suite(good="exit 0")[0] == 0
    assert table(tmp_path)[0] == 0
