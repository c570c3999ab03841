"""Bad input of `make test-docker`: no engine is one clear line and a failure, never a run without."""

import os
import pathlib
import subprocess
import sys

import pytest

RUN = pathlib.Path(__file__).resolve().parent / "run.py"
BUILD = os.environ["FREERIDE_BUILD_DIR"]


@pytest.fixture
def tools(tmp_path):
    """A PATH on which systemd-analyze and the rest of what run.py uses exist, and docker programs only as a test makes
    them."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def add(name, text):
        (folder / name).write_text("#!/bin/sh\n" + text + "\n")
        (folder / name).chmod(0o755)

    add("systemd-analyze", "exit 0")
    return folder, add


def run(tools, tmp_path, **env):
    folder, _ = tools
    variables = {key: value for key, value in os.environ.items() if key != "DOCKER_HOST"}
    done = subprocess.run(
        [sys.executable, RUN, "--build", BUILD, "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**variables, "PATH": str(folder), **env},
        check=False,
    )
    assert done.returncode == 1, done
    lines = done.stderr.strip().splitlines()
    assert lines[-1] == "test-docker: FAILED" and len(lines) == 2, done.stderr
    return lines[0]


def test_docker_is_not_installed(tools, tmp_path):
    assert "docker is not installed; scripts/install-deps.sh docker" in run(tools, tmp_path)


def test_nobody_listens_at_the_socket_that_the_user_names(tools, tmp_path):
    tools[1]("docker", "exit 1")
    line = run(tools, tmp_path, DOCKER_HOST=f"unix://{tmp_path}/nothing.sock")
    assert "no Docker engine answers at DOCKER_HOST=unix://" in line and "nothing.sock" in line


def test_the_engine_ends_at_its_start(tools, tmp_path):
    if os.geteuid() != 0:
        pytest.fail("only root gets as far as starting an engine; run the tests as root")
    tools[1]("docker", "exit 1")
    tools[1]("dockerd", "echo 'level=info msg=begin'; echo 'failed to start daemon: no overlay here'; exit 1")
    line = run(tools, tmp_path)
    assert "the Docker engine does not start: failed to start daemon: no overlay here" in line and "dockerd.log" in line
    assert "level=info" not in line
