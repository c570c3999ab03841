"""Every command of the front page and of the guides, as printed: installed, and typed in the order of the pages on a machine of its own."""

import json
import os
import pathlib
import subprocess

import pages
import pytest

from rig.processors import first_on_the_processors

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"])
HERE = pathlib.Path(__file__).resolve().parent
# In the order in which a reader gets to them: the front page starts manager, workers and a training, and the guides go on from there.
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/tasks/index.md",
    "docs/tasks/profiles.md",
    "docs/tasks/why.md",
    "docs/tasks/files.md",
    "docs/batches.md",
    "docs/authors/index.md",
    "docs/authors/progress.md",
    "docs/authors/python.md",
    "docs/authors/long-steps.md",
    "docs/authors/c.md",
    "plugins/template/README.md",
    "docs/tasks/shipped.md",
    "docs/trainers/index.md",
    "docs/trainers/observe.md",
    "docs/trainers/idle.md",
    "docs/monitoring.md",
    "docs/recording.md",
    "docs/several-hosts.md",
    "docs/uninstall.md",
    "docs/operators/install.md",
    "docs/operators/upgrade.md",
    "docs/operators/access.md",
    "docs/contribute/policies.md",
    "demo/README.md",
    "docs/operators/containers.md",
    "CONTRIBUTING.md",
]
WATCHDOG_S = 280


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    subprocess.run(["cmake", "--install", BUILD, "--prefix", folder / "usr"], check=True, stdout=subprocess.DEVNULL)
    run = [
        page
        for page in PAGES
        if any(block.language == "sh" and not block.not_run for block in pages.blocks((SOURCE / page).read_text()))
    ]
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    with first_on_the_processors():
        done = subprocess.run(
            [
                "unshare",
                *user,
                "--mount",
                "--propagation",
                "private",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "/usr/bin/python3",
                HERE / "machine.py",
                "pages",
                folder / "usr",
                folder / "out",
                *run,
            ],
            timeout=WATCHDOG_S,
            check=False,
        )
    assert done.returncode == 0
    answers = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    return {
        **dict.fromkeys(run, {"code": 1, "said": "an earlier page failed"}),
        **{answer["page"]: answer for answer in answers},
    }


@pytest.mark.parametrize("page", PAGES)
def test_the_page_s_commands_work_as_printed(page, said):
    if page not in said:
        pytest.skip("none of its commands is run")
    assert said[page]["code"] == 0, f"{page}\n{said[page]['said'][-20000:]}"


NOT_RUN = [
    pytest.param(page, text, why, id=f"{page}:{line}")
    for page in PAGES
    for line, why, text in pages.not_run(SOURCE / page)
]


@pytest.mark.parametrize("page, text, why", NOT_RUN)
def test_what_is_not_run_is_listed_and_its_make_targets_exist(page, text, why):
    """pytest -rs lists the blocks that are not run, and why."""
    for line in text.splitlines():
        if line.startswith("make "):
            target = line.split()[1]
            assert (
                subprocess.run(["make", "-n", target], cwd=SOURCE, capture_output=True, check=False).returncode == 0
            ), f"{page}: make {target}"
    pytest.skip(why)


def test_the_blocks_of_a_page():
    page = """text
    no block: it goes on from the line before

    first # one

    second

```sh
third
```
<!-- not run by tests: it is long -->

    fourth

```cpp
int main() {}
```
```text
    no command
```

    g++ ./main.cpp
"""
    found = pages.blocks(page)
    assert [(block.language, block.line, block.lines[0], block.not_run) for block in found] == [
        ("sh", 4, "first # one", ""),
        ("sh", 9, "third", ""),
        ("sh", 13, "fourth", "it is long"),
        ("cpp", 16, "int main() {}", ""),
        ("text", 19, "    no command", ""),
        ("sh", 22, "g++ ./main.cpp", ""),
    ]
    assert pages.file_of(found[3], found[4:]) == "main.cpp"


def test_a_page_s_script_has_the_page_s_lines(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("""# Page

    freeride-ctl top     # live, until Ctrl-C

```python
import zmq
```
<!-- not run by tests: it is long -->

    sleep 9
""")
    script = pages.script(page, tmp_path).splitlines()
    assert (
        script[2] == "look; live freeride-ctl top     # live, until Ctrl-C"
        and script[4] == "live /usr/bin/python3 line6.py"
    )
    assert [line for line in script if line] == [script[2], script[4]]
    assert (tmp_path / "line6.py").read_text() == "import zmq\n"
