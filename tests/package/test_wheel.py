"""The wheel (make wheel): into a virtual environment with pip, without an index. A training is observed, then side tasks
run beside one, all from there. PyPI has to be reachable for what makes wheels; torch is Debian's."""

import email
import os
import pathlib
import re
import subprocess
import zipfile

import pytest
from from_wheel import harvest

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"])
ENVIRONMENT = {key: value for key, value in os.environ.items() if not re.match("FREERIDE_|PYTHON", key)}
PROGRAMS = ("manager", "worker", "node", "runner", "ctl", "recorder", "web")


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
    folder = wheel.parent / "a venv"
    run("/usr/bin/python3", "-m", "venv", "--system-site-packages", folder)
    run(folder / "bin/pip", "--disable-pip-version-check", "install", "--no-index", wheel)
    return folder


@pytest.fixture(scope="module")
def site(venv):
    (package,) = venv.glob("lib/python3*/site-packages/freeride")
    return package.parent


def test_it_fits_any_python_3_and_holds_everything(wheel):
    assert wheel.name.split("-")[2:] == ["py3", "none", f"manylinux_2_34_{os.uname().machine}.whl"]
    assert wheel.stat().st_size < 25 << 20
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        about = next(name for name in names if name.endswith(".dist-info/WHEEL"))
        assert email.message_from_bytes(files.read(about))["Root-Is-Purelib"] == "false"
        for name in ("libfreeride_hook.so", "libfreeride_cudart.so"):
            library = wheel.parent / name
            library.write_bytes(files.read(f"freeride/{name}"))
            needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library))
            assert all(re.match(r"lib[cm]\.|ld-linux", each) for each in needed), needed  # glibc alone
            library.unlink()
    assert {"freeride/run.py", "freeride/_start/sitecustomize.py", "freeride/observe.py", "freeride/_hook.py"} <= names
    tree = {name.removeprefix("freeride/_tree/") for name in names}
    assert {f"bin/freeride-{name}" for name in PROGRAMS} | {"bin/bwrap", "lib/libfreeride_shim.so"} <= tree
    assert {f"plugins/{name}" for name in ("pagerank.so", "sgd.so", "image.so", "canary.so", "generate.py")} <= tree
    assert {
        "completion/freeride-ctl",
        "systemd/freeride-node.service",
        "examples/train_gpt.py",
        "freeride.toml",
    } <= tree
    assert {f"licenses/{name}" for name in ("libzmq5", "libssl3", "bubblewrap", "libstdc++6", "cuda-runtime")} <= tree
    assert not [name for name in tree if name.endswith("__init__.py") and not name.startswith("freeride/")]


def test_every_program_starts_from_the_environments_path(venv):
    env = {"PATH": f"{venv}/bin:/usr/bin:/bin"}
    for program in PROGRAMS:
        assert f"freeride-{program}" in run(f"freeride-{program}", "--help", env=env)
    assert run("freeride", "--version", env=env) == run("freeride-ctl", "--version", env=env)


def test_side_tasks_run_beside_a_training_and_all_of_it_is_the_wheels(venv, site):
    assert "a sandbox with freeride-runner in it starts" in run(venv / "bin/freeride-ctl", "doctor", env=ENVIRONMENT)
    done = harvest(venv)
    assert done["harvested_ns"] > 0
    assert len(done["programs"]) == 3
    assert all(program.startswith(f"{site}/freeride/_tree/bin/") for program in done["programs"]), done


def test_a_training_is_observed_from_it_with_nothing_else_set(venv, tmp_path):
    python = venv / "bin/python"
    code = "import freeride; from freeride._library import Library; print(freeride.__file__); print(Library().path)"
    where = run(python, "-c", code, cwd=tmp_path, env=ENVIRONMENT)
    assert all(path.startswith(str(venv)) for path in where.splitlines()), where
    training = (SOURCE / "hooks/examples/train_gpt.py", "--stages", "2", "--iterations", "6")
    small = ("--dim", "16", "--heads", "2", "--layers", "4", "--seq", "16", "--micro-batch-size", "2")
    said = run(python, "-m", "freeride.observe", *training, *small, cwd=tmp_path, env=ENVIRONMENT)
    assert "bubbles take" in said
    assert {path.name for path in (tmp_path / "freeride-observe").iterdir()} >= {"rank0.json", "rank1.json"}


def test_uninstalled_it_leaves_nothing(venv, site):
    run(venv / "bin/pip", "--disable-pip-version-check", "uninstall", "--yes", "freeride-bubbles")
    assert not list(venv.rglob("*freeride*")), site
