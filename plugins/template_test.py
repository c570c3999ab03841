"""What a plugin author does, from an installed package: copy the template, build it both ways, check it. And a plugin in C."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
ENTRY = "freeride_plugin_v1"


def run(*command, **options):
    result = subprocess.run(
        [str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}"
    return result.stdout


def compiler():
    """The compiler that FreeRide was configured with: a plugin must not need another one."""
    cache = (BUILD / "CMakeCache.txt").read_text()
    return re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.M).group(1)


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(prefix="freeride-template-") as name:
        yield pathlib.Path(name)


@pytest.fixture(scope="module")
def prefix(folder):
    """The package as a user has it, moved after it was installed: nothing in it may remember where it was."""
    run("cmake", "--install", BUILD, "--prefix", folder / "first", "--component", "plugin-sdk")
    (folder / "first").rename(folder / "prefix")
    return folder / "prefix"


@pytest.fixture(scope="module")
def template(folder, prefix):
    shutil.copytree(prefix / "share/freeride/template", folder / "my_task")
    return folder / "my_task"


def exported(plugin):
    return {line.split()[-1] for line in run("nm", "-D", "--defined-only", plugin).splitlines()}


def check(plugin):
    """The symbol by dlopen in a process of its own; the whole contract by the runner, where it is built."""
    code = f"import ctypes; ctypes.CDLL({str(plugin)!r}).{ENTRY}.restype"
    run("/usr/bin/python3", "-c", code)
    runner = BUILD / "bin" / "freeride-runner"
    if runner.exists():
        run(runner, "check", plugin, "--param", "limit=100000")


def test_with_cmake(folder, prefix, template):
    run(
        "cmake",
        "-S",
        template,
        "-B",
        folder / "cmake",
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler()}",
        "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror",
    )
    run("cmake", "--build", folder / "cmake")
    plugin = folder / "cmake" / "my_task.so"
    assert exported(plugin) == {ENTRY}
    check(plugin)


def test_with_one_line(prefix, template):
    """The very line that the template's source and README show."""
    lines = {re.search(r"g\+\+ .*", (template / name).read_text()).group(0) for name in ("my_task.cpp", "README.md")}
    assert len(lines) == 1
    words = [*lines.pop().split(), "-I", str(prefix / "include")]
    words[0] = compiler()
    run(*words, "-Wall", "-Wextra", "-Werror", cwd=template)
    plugin = template / "my_task.so"
    assert ENTRY in exported(plugin)
    # GNU unique symbols would keep a closed plugin mapped. The standard library may bring its own, the SDK must not.
    assert not [line for line in run("nm", "-DC", plugin).splitlines() if " u " in line and " std::" not in line]
    check(plugin)


def test_without_hidden_visibility_it_still_loads(prefix, template, folder):
    run(
        compiler(),
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-I",
        prefix / "include",
        template / "my_task.cpp",
        "-o",
        folder / "plain.so",
    )
    check(folder / "plain.so")


def test_a_project_in_c(folder, prefix):
    """C alone: the package must not need a C++ compiler."""
    source = folder / "in_c"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(in_c LANGUAGES C)\nfind_package(FreeRide 0.1 REQUIRED)\n"
        "freeride_add_plugin(in_c SOURCES in_c.c)\n"
    )
    guide = (prefix / "share/doc/freeride/plugin-guide/c.md").read_text()
    (source / "in_c.c").write_text(re.search(r"```c\n(.*?)```", guide, re.S).group(1))
    run(
        "cmake",
        "-S",
        source,
        "-B",
        source / "build",
        f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror",
    )
    run("cmake", "--build", source / "build")
    assert exported(source / "build/in_c.so") == {ENTRY}
    runner = BUILD / "bin" / "freeride-runner"
    if runner.exists():
        run(runner, "check", source / "build/in_c.so")


def test_the_guide_s_minute(folder, prefix):
    """The guide's first plugin compiles as it stands there, and is as short as promised."""
    guide = (prefix / "share/doc/freeride/plugin-guide/index.md").read_text()
    code = re.search(r"```cpp\n(.*?)```", guide, re.S).group(1)
    assert len([line for line in code.splitlines() if "freeride" in line.lower() or "override" in line]) <= 12
    (folder / "minute.cpp").write_text(code)
    run(
        compiler(),
        "-std=c++17",
        "-O2",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        prefix / "include",
        folder / "minute.cpp",
        "-o",
        folder / "minute.so",
    )
    assert ENTRY in exported(folder / "minute.so")
    runner = BUILD / "bin" / "freeride-runner"
    if runner.exists():
        run(runner, "check", folder / "minute.so")


def test_the_table_of_lines_is_what_is_counted():
    plugins = pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"]) / "plugins"
    run(plugins / "count_lines", "--check", plugins / "README.md")
    table = run(plugins / "count_lines").splitlines()[1:]
    # canary tells of its device in FreeRide's words, which are counted as such.
    assert len(table) >= 9 and all(int(line.split()[1]) <= 12 for line in table if line.split()[0] != "canary")


def test_mistakes_are_told(folder, prefix):
    source = folder / "mistake"
    source.mkdir()
    head = "cmake_minimum_required(VERSION 3.18)\nproject(m LANGUAGES CXX)\nfind_package(FreeRide REQUIRED)\n"
    for line, message in [
        ("freeride_add_plugin(m)", "no SOURCES given"),
        ("freeride_add_plugin(m SOURCES a.cpp LINK z)", None),
        ("freeride_add_plugin(m a.cpp SOURCES b.cpp)", "It takes SOURCES and USES"),
    ]:
        (source / "CMakeLists.txt").write_text(head + line + "\n")
        result = subprocess.run(
            ["cmake", "-S", str(source), "-B", str(source / "build"), f"-DCMAKE_PREFIX_PATH={prefix}"],
            capture_output=True,
            text=True,
        )
        assert result.returncode != 0
        assert message is None or message in " ".join(result.stderr.split()), result.stderr


def test_the_readmes_plugin(folder, prefix):
    """The plugin of the front page, compiled by the line below it."""
    text = (pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"]) / "README.md").read_text()
    source = next(block for block in re.findall(r"```cpp\n(.*?)```", text, re.S) if "FREERIDE_PLUGIN(" in block)
    line = next(line.split() for line in text.splitlines() if line.strip().startswith("g++ "))
    (folder / line[-3]).write_text(source)
    run(compiler(), *line[1:], "-Wall", "-Wextra", "-Werror", f"-I{prefix / 'include'}", cwd=folder)
    checked = run(BUILD / "bin" / "freeride-runner", "check", folder / line[-1])
    assert "pi 1.0: " in checked and "warn" not in checked, checked
