"""The Debian package, made from this build and unpacked: it holds what one needs, asks for what it uses, and works from
where it lies."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from rig.system import System
from rig.tree import Tree

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"])


def run(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, **more)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    done = run("cpack", "-G", "DEB", "-B", folder, cwd=BUILD)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("freeride_*.deb")
    assert {made.name.split("_")[0] for made in folder.glob("*.deb")} == {"freeride", "freeride-hook"}
    return path


def test_what_make_deb_builds_without_tests_can_be_configured(tmp_path):
    done = run("cmake", "--preset", "package", "-B", tmp_path, cwd=SOURCE)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def hook_package(package):
    (path,) = package.parent.glob("freeride-hook_*.deb")
    return path


@pytest.fixture(scope="module")
def root(package, hook_package):
    folder = package.parent / "root"
    for each in (package, hook_package):
        assert run("dpkg-deb", "-x", each, folder).returncode == 0
    return folder


def contents(package):
    return {line.split()[5] for line in run("dpkg-deb", "-c", package).stdout.splitlines() if line.startswith("-")}


def test_the_hook_s_package_is_what_a_training_needs_and_no_file_is_in_both(package, hook_package):
    hook, rest = contents(hook_package), contents(package)
    assert not hook & rest
    assert {"./usr/share/freeride/python/freeride/observe.py", "./usr/lib/python3/dist-packages/freeride.pth"} <= hook
    assert {path.rpartition("/")[2] for path in hook if path.endswith(".so")} == {
        "libfreeride_hook.so",
        "libfreeride_cudart.so",
    }
    assert not [path for path in hook if "/bin/" in path or "systemd" in path]
    depends = run("dpkg-deb", "-f", hook_package, "Depends").stdout
    assert "libc6" in depends and not re.search(r"zmq|sqlite|bubblewrap|freeride", depends), depends


def test_who_has_the_one_package_of_before_gets_both(package, hook_package):
    """dpkg is not to refuse files that the older package has, nor to leave that one without them."""
    version = run("dpkg-deb", "-f", package, "Version").stdout.strip()
    assert f"freeride-hook (= {version})" in run("dpkg-deb", "-f", package, "Depends").stdout
    for field in ("Replaces", "Breaks"):
        assert run("dpkg-deb", "-f", hook_package, field).stdout.strip() == f"freeride (<< {version}~)"


def test_it_brings_man_pages_completion_and_a_sample_configuration(package):
    files = contents(package)
    pages = {f"./usr/share/man/man1/freeride-{name}.1" for name in ("ctl", "manager", "worker", "runner")}
    assert pages <= {path.removesuffix(".gz") for path in files}
    assert "./usr/share/bash-completion/completions/freeride-ctl" in files
    assert "./usr/share/doc/freeride/freeride.toml" in files


def elf_files(root):
    return [path for path in root.rglob("*") if path.is_file() and path.open("rb").read(4) == b"\x7fELF"]


def test_it_depends_on_what_it_uses(package):
    depends = run("dpkg-deb", "-f", package, "Depends").stdout
    for name in ("bubblewrap", "libzmq5", "libsqlite3-0", "libc6"):
        assert name in depends
    control = run("dpkg-deb", "-I", package).stdout
    assert all(script in control for script in ("postinst", "prerm", "postrm"))


def test_no_file_of_it_remembers_where_it_was_built(root):
    files = elf_files(root)
    assert {path.name for path in files} >= {
        "freeride-manager",
        "freeride-worker",
        "freeride-runner",
        "freeride-ctl",
        "libfreeride_hook.so",
        "libfreeride_cudart.so",
        "pagerank.so",
    }
    for path in files:
        assert str(BUILD) not in run("readelf", "-d", path).stdout, path
        assert "not found" not in run("ldd", path).stdout, path


def test_every_program_and_library_of_it_is_hardened(root):
    """Position-independent, its relocations read-only and bound at the start, no executable stack, stack protector,
    landing pads."""
    fortified = set()
    for path in elf_files(root):
        headers, dynamic = run("readelf", "-hlW", path).stdout, run("readelf", "-dW", path).stdout
        symbols = run("readelf", "--dyn-syms", "-W", path).stdout
        assert re.search(r"Type: +DYN ", headers), path
        assert "INTERP" not in headers or re.search(r"FLAGS_1.*\bPIE\b", dynamic), path
        assert "GNU_RELRO" in headers and re.search(r"FLAGS_1.*\bNOW\b", dynamic), path
        assert re.search(r"GNU_STACK .* RW ", headers), path
        assert "__stack_chk_fail" in symbols, path
        fortified |= {path.name} if re.search(r"\b__\w+_chk@", symbols.replace("__stack_chk_fail", "")) else set()
        if os.uname().machine == "x86_64":
            assert run("objdump", "-d", path).stdout.count("endbr64") > 3, path  # some are of the start files
    assert fortified >= {"freeride-manager", "freeride-worker", "freeride-runner", "freeride-ctl"}


def test_every_file_of_it_is_compiled_with_a_stack_that_cannot_be_jumped_over():
    """The probes show in no header: what the compiler was told does."""
    commands = [
        entry
        for entry in json.loads((BUILD / "compile_commands.json").read_text())
        if re.search(r" -o \w+/CMakeFiles/freeride[_-]", entry["command"])
    ]
    assert commands and not [entry["file"] for entry in commands if "-fstack-clash-protection" not in entry["command"]]


def test_units_start_programs_that_it_brings(root):
    units = list((root / "usr/lib/systemd/system").glob("*.service"))
    assert len(units) == 5
    for unit in units:
        (program,) = re.findall(r"^ExecStart=(\S+)", unit.read_text(), re.M)
        assert os.access(root / program.lstrip("/"), os.X_OK)


def test_no_unit_starts_for_ever_what_wrong_settings_end(root):
    for unit in (root / "usr/lib/systemd/system").glob("*.service"):
        said = dict(re.findall(r"^(\w+)=(.*)", unit.read_text(), re.M))
        assert said["RestartPreventExitStatus"] == "2", unit
        assert said["StartLimitIntervalSec"] != "0" and int(said["StartLimitBurst"]) > 1, unit


def test_the_hook_is_found_without_the_source_tree(root, tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FREERIDE_")}
    environment.update(
        PYTHONPATH=str(root / "usr/share/freeride/python"),
        LD_LIBRARY_PATH=str(next(root.rglob("libfreeride_hook.so")).parent),
    )
    code = "from freeride._library import Library; import freeride; print(Library().path, freeride.__file__)"
    done = run(sys.executable, "-c", code, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    path, package = done.stdout.split()
    assert path == "libfreeride_hook.so" and package.startswith(str(root))


def test_debians_python_finds_the_package_by_itself(root, tmp_path):
    # dist-packages is a folder of sites to Debian's Python; here it is made one.
    code = f"import site; site.addsitedir({str(root / 'usr/lib/python3/dist-packages')!r}); import freeride; print(freeride.__file__)"
    done = run("/usr/bin/python3", "-c", code, cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    assert (
        pathlib.Path(done.stdout.strip()).resolve() == root.resolve() / "usr/share/freeride/python/freeride/__init__.py"
    )


def test_another_python_is_told_where_it_is(root, tmp_path):
    """A virtual environment's gets the package and nothing of the system's."""
    assert run("/usr/bin/python3", "-m", "venv", "--without-pip", tmp_path / "venv").returncode == 0
    path = run(root / "usr/bin/freeride-ctl", "python-path").stdout.strip()
    assert not list(pathlib.Path(path).glob("zmq*"))
    code = "import sys, freeride.run; print(sys.prefix, freeride.__file__); assert not any('dist-packages' in folder for folder in sys.path)"
    done = run(tmp_path / "venv/bin/python", "-c", code, cwd=tmp_path, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(tmp_path / "venv") and done.stdout.split()[1].startswith(str(root))


def test_the_worker_finds_a_bwrap_beside_it(root, tmp_path):
    for name in ("freeride-ctl", "freeride-worker", "freeride-runner"):
        shutil.copy(root / "usr/bin" / name, tmp_path)
    environment = {"PATH": "/nowhere", "FREERIDE_RUN_DIR": str(tmp_path), "FREERIDE_STATE_DIR": str(tmp_path)}

    def bubblewrap():
        found = json.loads(run(tmp_path / "freeride-ctl", "doctor", "--format", "json", env=environment).stdout)[
            "findings"
        ]
        return next(finding for finding in found if finding["name"] == "bubblewrap")

    assert bubblewrap()["health"] == "missing"
    shutil.copy(shutil.which("bwrap"), tmp_path)
    assert bubblewrap()["health"] == "ok"


def test_manager_and_worker_run_from_it(root):
    with System(Tree(root / "usr/bin")) as system:
        checked = run(
            system.tree.program("freeride-ctl"), "plugin", "check", next(root.rglob("pagerank.so")), env=system.env
        )
        assert checked.returncode == 0, checked.stderr
        system.start_manager()
        system.start_worker("cpu-0", "--sandbox", "none", name="worker")
        system.wait_workers(1)
        for name in ("worker", "manager"):
            system.end(name, 60)


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_scripts_are_sound_shell(script):
    assert run("sh", "-n", SOURCE / "scripts/deb" / script).returncode == 0
