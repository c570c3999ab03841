"""freeride._programs and the commands that pip makes of it: which program is started, and that none starts itself."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import freeride

PACKAGE = pathlib.Path(freeride.__file__).parent
COMMAND = "import sys; sys.argv[0] = {itself!r}; from freeride import _programs; sys.exit(_programs.main())"


def program(path, says):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho {says} "$@"\n')
    path.chmod(0o755)


@pytest.fixture
def place(tmp_path):
    """A folder with a copy of the package at `at`, which is run by `start`."""

    class Place:
        folder = tmp_path / "a place"

        def put(self, at):
            shutil.copytree(PACKAGE, self.folder / at / "freeride", ignore=shutil.ignore_patterns("__pycache__"))
            self.package = self.folder / at

        def start(self, *words, itself="freeride-ctl", module=None):
            how = ["-m", module] if module else ["-c", COMMAND.format(itself=str(self.folder / "bin" / itself))]
            env = {**os.environ, "PYTHONPATH": str(self.package), "PATH": f"{self.folder}/bin:{tmp_path}/other:/bin"}
            return subprocess.run([sys.executable, *how, *words], env=env, capture_output=True, text=True, timeout=60)

    return Place()


@pytest.mark.parametrize(
    "at, own",
    [
        ("lib/python3.11/site-packages", "lib/python3.11/site-packages/freeride/_tree/bin"),
        ("tree/python", "tree/bin"),
        ("usr/share/freeride/python", "usr/bin"),
    ],
)
def test_an_installations_own_program_comes_before_others(place, tmp_path, at, own):
    place.put(at)
    program(tmp_path / "other/freeride-ctl", "another")
    assert place.start("status").stdout == "another status\n"
    program(place.folder / own / "freeride-ctl", "own")
    assert place.start("status", "a b").stdout == "own status a b\n"
    assert place.start("status", module="freeride").stdout == "own status\n"
    program(place.folder / own / "freeride-worker", "worker")
    assert place.start(itself="freeride-worker").stdout == "worker\n"


def test_a_command_without_programs_does_not_start_itself(place, tmp_path):
    place.put("lib/python3.11/site-packages")
    program(place.folder / "bin/freeride-ctl", "itself")
    done = place.start("status")
    assert done.returncode == 127 and "freeride-ctl: the program is neither in" in done.stderr, done
    program(tmp_path / "other/freeride-ctl", "another")
    assert place.start("status").stdout == "another status\n"


def test_a_program_that_cannot_be_started_is_named(place):
    place.put("site-packages")
    own = place.folder / "site-packages/freeride/_tree/bin/freeride-ctl"
    program(own, "own")
    own.write_text("#!/nowhere/sh\n")
    done = place.start()
    assert done.returncode == 126 and f"{own} cannot be started: No such file" in done.stderr, done
