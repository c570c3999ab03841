"""The trainer's wheel (make wheel): into a virtual environment with pip, and a training is observed. PyPI has to be
reachable for what makes wheels; torch is Debian's."""

import email
import os
import pathlib
import re
import subprocess
import zipfile

import pytest

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"])


def run(*words, **more):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=280, check=False, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    path = pathlib.Path(run(SOURCE / "scripts/make-wheel.sh", BUILD, out).strip())
    assert [path] == list(out.iterdir())
    return path


@pytest.fixture(scope="module")
def venv(wheel):
    folder = wheel.parent / "venv"
    run("/usr/bin/python3", "-m", "venv", "--system-site-packages", folder)
    run(folder / "bin/pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps", wheel)
    return folder


def test_it_fits_any_python_3_on_hosts_as_new_as_its_tag_says(wheel):
    machine = os.uname().machine
    tag = re.fullmatch(rf"freeride_bubbles-[\d.]+-py3-none-manylinux_2_(\d+)_{machine}\.whl", wheel.name)
    assert tag, wheel.name
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        about = next(name for name in names if name.endswith(".dist-info/WHEEL"))
        assert email.message_from_bytes(files.read(about))["Root-Is-Purelib"] == "false"
        for name in ("libfreeride_hook.so", "libfreeride_cudart.so"):
            library = wheel.parent / name
            library.write_bytes(files.read(f"freeride/{name}"))
            needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library))
            assert all(re.match(r"lib[cm]\.|ld-linux", each) for each in needed), needed  # glibc alone
            versions = [int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", run("readelf", "-V", library))]
            assert max(versions) <= int(tag.group(1))
    assert {"freeride/run.py", "freeride/_start/sitecustomize.py", "freeride/observe.py", "freeride/_hook.py"} <= names


def test_a_training_is_observed_from_it_with_nothing_else_set(venv, tmp_path):
    environment = {key: value for key, value in os.environ.items() if not re.match("FREERIDE_|PYTHON", key)}
    python = venv / "bin/python"
    where = run(
        python,
        "-c",
        "import freeride; from freeride._library import Library; print(freeride.__file__, Library().path)",
        cwd=tmp_path,
        env=environment,
    )
    assert all(path.startswith(str(venv)) for path in where.split()), where
    training = (SOURCE / "hooks/examples/train_gpt.py", "--stages", "2", "--iterations", "6")
    small = ("--dim", "16", "--heads", "2", "--layers", "4", "--seq", "16", "--micro-batch-size", "2")
    said = run(python, "-m", "freeride.observe", *training, *small, cwd=tmp_path, env=environment)
    assert "bubbles take" in said
    assert {path.name for path in (tmp_path / "freeride-observe").iterdir()} >= {"rank0.json", "rank1.json"}


def test_uninstalled_it_leaves_nothing(venv):
    run(venv / "bin/pip", "--disable-pip-version-check", "uninstall", "--yes", "freeride-bubbles")
    assert not [path for path in venv.rglob("*freeride*") if path.is_file()]
