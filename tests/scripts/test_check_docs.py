"""scripts/check-docs.py: each kind of mistake is found, with its line, and what is right is left alone."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELP = """The user's tool.
Usage: freeride-ctl [OPTIONS] SUBCOMMAND

Options:
  -h,--help                   Print this help message and exit
  --format TEXT               table or json
Subcommands:
  load                        run a plugin
"""
HELP_OF_LOAD = """run a plugin
Usage: freeride-ctl load [OPTIONS] plugin

Positionals:
  plugin TEXT REQUIRED        a file
Options:
  -h,--help                   Print this help message and exit
  --stage INT                 the stage
  --paused                    start paused
"""


def module(path, name):
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


docs = module("scripts/check-docs.py", "check_docs")


@pytest.fixture
def tree(tmp_path):
    def make(**texts):
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
        for name, text in texts.items():
            (tmp_path / f"{name}.md").write_text(text)
        return docs.Tree(tmp_path)

    return make


@pytest.fixture
def programs(tmp_path):
    script = tmp_path / "freeride-ctl"
    script.write_text(f"#!/bin/sh\ncase $1 in load) cat <<'E'\n{HELP_OF_LOAD}E\n;; *) cat <<'E'\n{HELP}E\n;; esac\n")
    script.chmod(0o755)
    cli = module("scripts/cli-docs.py", "cli_docs")
    docs.PROGRAMS["freeride-ctl"] = cli.parse([str(script)])
    yield
    docs.PROGRAMS.clear()


def test_long_lines_of_prose_are_found_and_tables_code_and_links_are_not(tree):
    long = "word " * 25
    links = f"[the page](other.md#{'x' * 80}) is here"
    made = tree(a=f"# A\n\n{long}\n\n| {long} |\n\n```text\n{long}\n```\n\n    {long}\n\n{links}\n")
    assert [line.split(": ")[0] for line in docs.columns(made)] == ["a.md:3"]


def test_a_table_without_a_row(tree):
    made = tree(a="| a | b |\n|---|:-:|\n| 1 | 2 |\n\n| a | b |\n|---|---|\n\n| 1 | 2 |\n", b="| a |\n|---|\n")
    assert list(docs.tables(made)) == ["a.md:6: a table without a row", "b.md:2: a table without a row"]


def test_links_to_files_and_headings(tree):
    made = tree(
        a="# A\n\n[good](b.md#two-words-x) [bad](c.md) [no heading](b.md#three)\n\n## Why?\n\n[here](#why) `[code](no.md)`\n",
        b="# B\n\n## Two words: `x`\n",
    )
    assert list(docs.links(made)) == ["a.md:3: there is no c.md", "a.md:3: b.md has no heading #three"]


def test_tests_that_are_named_exist(tree):
    made = tree(a='| it | `b.py`: "test_it", "test_that"; `c.py`: "test_all" |\n')
    made.files.add("b.py")
    (made.root / "b.py").write_text("def test_it(): ...\n")
    assert list(docs.shown(made)) == ["a.md:1: b.py has no test 'test_that'", "a.md:1: c.py has no test 'test_all'"]


def test_headings_of_one_name_are_numbered():
    assert docs.anchors("# A b\n\n## A b\n\n```\n# no heading\n```\n") == {"a-b", "a-b-1"}


@pytest.mark.parametrize(
    "line, problem",
    [
        ("freeride-ctl load ./a.so --stage 1 --paused", None),
        ("freeride-ctl --format json load a.so --stage=1", None),
        ("freeride-ctl load a.so --stages 1", "freeride-ctl load has no option --stages"),
        ("freeride-ctl lod a.so", "freeride-ctl has no verb lod"),
        ("X=1 freeride-ctl load a.so --bad   # a remark with --worse", "freeride-ctl load has no option --bad"),
    ],
)
def test_command_lines(programs, line, problem):
    found = [wrong for _, words in docs.command_lines(line) for wrong in docs.wrong_in(words)]
    assert found == ([problem] if problem else [])


def test_wrapping_keeps_lists_code_and_short_paragraphs():
    long = "- an item with `code that is kept whole` and " + "words " * 20
    text = f"# A\n\nshort\nlines\n\n{long}\n  that goes on\n\n```text\n{'x ' * 80}\n```\n"
    wrapped = docs.wrap(text)
    assert wrapped.startswith("# A\n\nshort\nlines\n\n- an item with `code that is kept whole` and words")
    lines = wrapped.splitlines()
    assert all(len(line) <= docs.COLUMNS for line in lines if "x x" not in line)
    assert lines[6].startswith("  words") and docs.wrap(wrapped) == wrapped


def test_long_sentences(tree):
    made = tree(a=f"# A\n\nShort one. {'Word ' * 33}end.\n\n- An item.\n- {'Word ' * 31}end.\n")
    assert [line.split(": ")[:2] for line in docs.long_sentences(made, ["a.md"])] == [["a.md:3", "34 words"]]
