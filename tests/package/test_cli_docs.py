"""Man pages and the shell's completion say what the programs' --help says."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
PAGES = sorted((BUILD / "man").glob("*.1"))


def help_of(*words):
    done = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def everything(program, verbs=()):
    """Every option and verb of a program, by its own word."""
    text = help_of(program, *verbs)
    yield from re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M)
    found = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.M)
    for verb in re.findall(r"^  ([\w-]+)", found.group(1), re.M) if found else ():
        yield verb
        yield from everything(program, (*verbs, verb))


def test_every_program_has_a_page():
    programs = {"freeride-manager", "freeride-worker", "freeride-runner", "freeride-ctl"}
    assert {page.stem for page in PAGES} >= programs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_option_and_verb_of_the_help_is_in_the_man_page(page):
    words = set(everything(BUILD / "bin" / page.stem))
    assert "--help" in words
    text = re.sub(r"\\f[BR]", "", page.read_text()).replace(r"\-", "-")
    missing = {word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_option_and_verb_of_the_help_is_in_the_reference(page):
    script = pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"]) / "scripts/cli-docs.py"
    text = subprocess.run(
        [sys.executable, script, "reference", BUILD / "bin" / page.stem], capture_output=True, text=True, check=True
    ).stdout
    assert text.startswith(f"# {page.stem}\n")
    words = set(everything(BUILD / "bin" / page.stem)) - {"--help"}
    assert not {word for word in words if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)}


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_is_sound(page):
    done = subprocess.run(["groff", "-k", "-man", "-Tutf8", "-ww", page], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr


# ---- completion --------------------------------------------------------------------------------------------------------


@pytest.fixture
def complete(tmp_path):
    """What bash offers for words, the last of them unfinished. The program is played: it lists what it is told to."""
    lists = {"tasks": ["pagerank", "thumbs"], "plugins": ["image.so", "$(touch owned).so", "a b.so"]}
    script = tmp_path / "freeride-ctl"
    cases = "".join(
        f"{verb}) printf '%s\\n' name {' '.join(map(shlex.quote, names))} ;;\n" for verb, names in lists.items()
    )
    script.write_text(f"#!/bin/sh\ncase $1 in\n{cases}esac\n")
    script.chmod(0o755)

    def offered(*words):
        code = """
          source "$1"; shift
          COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
          _freeride_ctl
          printf '%s\\n' "${COMPREPLY[@]}"
        """
        done = subprocess.run(
            ["bash", "-c", code, "bash", BUILD / "completion/freeride-ctl", "freeride-ctl", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=tmp_path,
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )
        assert not done.stderr
        return done.stdout.split("\n")[:-1]

    return offered


def test_verbs_and_options_are_completed(complete):
    verbs = complete("")
    assert {"load", "tasks", "wait", "rm", "keys"} <= set(verbs)
    assert complete("ta") == ["tasks", "task"]
    assert complete("load", "--st") == ["--stage", "--steps"]
    assert complete("--format", "csv", "keys", "m") == ["make"]
    assert complete("tasks", "--format", "") == ["table", "json", "csv"]
    assert "--columns" in complete("profile", "list", "--")
    assert complete("load", "x.so", "--paused", "--nam") == ["--name"]  # a flag takes no value


def test_names_of_tasks_and_plugins_come_from_the_manager(complete, tmp_path):
    assert complete("stop", "") == ["pagerank", "thumbs"]
    assert complete("task", "th") == ["thumbs"]
    assert complete("load", "x.so", "--replace", "p") == ["pagerank"]
    assert complete("load", "i") == ["image.so"]
    assert "image.so" in complete("load", "")
    assert not (tmp_path / "owned").exists()  # a file's name is no command


# ---- the sample configuration ------------------------------------------------------------------------------------------


def sample():
    """Of each section its keys, and those lines that have a default."""
    sections = {}
    for line in (BUILD / "freeride.toml").read_text().splitlines():
        if found := re.match(r"\[(\w+)\]", line):
            keys, defaults = sections[found.group(1)] = set(), []
        elif found := re.match(r"#(\w+) =(.*)", line):
            keys.add(found.group(1))
            if "# no default" not in found.group(2):
                defaults.append(line.removeprefix("#"))
    return sections


@pytest.mark.parametrize("section", ["manager", "worker", "node", "ctl", "recorder", "web"])
def test_the_sample_configuration_has_every_key_and_defaults_that_hold(section, tmp_path):
    keys, defaults = sample()[section]
    file = tmp_path / "freeride.toml"

    def complaint(text):
        file.write_text(f"[{section}]\n{text}\n")
        done = subprocess.run(
            [BUILD / "bin" / f"freeride-{section}", *(["python-path"] if section == "ctl" else [])],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": os.environ["PATH"], "FREERIDE_CONFIG": str(file)},
        )
        return done.stderr

    known = set(re.search(r"known keys: (.*)", complaint("no_such_key = 1")).group(1).split(", "))
    assert keys <= known and known - keys <= {"probe"}  # what a program calls itself with
    # All of them at once, and a wrong key behind them: that alone is complained about.
    assert "unknown key 'no_such_key'" in complaint("\n".join([*defaults, "no_such_key = 1"]))
