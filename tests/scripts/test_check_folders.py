"""scripts/check-folders.py on made trees: each way to break a table is one line, and a tree that keeps to them is
fine."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check-folders.py"
GOOD = {
    "ARCHITECTURE.md": """| folder | what lives there | may use |
|---|---|---|
| `base/` | what all use | – |
| `worker/` | the program | base |
| `hooks/` | the package | base |
| `bench/` | benchmarks | all |
| `tests/` | tests | all |
""",
    "worker/README.md": """| room | what | may use of the others |
|---|---|---|
| `loop/` | waiting | – |
| `tasks/` | one task | loop |
| `daemon/` | all of it | all |

| `elsewhere/` | is no room | tasks |
""",
    **{f"{folder}/README.md": "# it\n" for folder in ("base", "hooks", "bench", "tests")},
    "base/include/freeride/base/log.hpp": "#pragma once\n",
    "worker/loop/loop.hpp": "#include <poll.h>\n",
    "worker/tasks/task.cpp": '#include "freeride/base/log.hpp"\n#include "loop/loop.hpp"\n',
    "worker/tasks/task.hpp": "#include <vector>\n",
    "worker/daemon/main.cpp": '#include "tasks/task.hpp"\n',
    "worker/loop/loop_test.cpp": '#include "daemon/main.hpp"\n',
    "hooks/python/freeride/__init__.py": "from . import _hook\n",
    "hooks/python/freeride/_hook.py": "import os\n\n\ndef late():\n    from . import measure\n",
    "hooks/python/freeride/measure.py": "from ._hook import late\n",
    "bench/run.py": "import statistics\nfrom freeride import measure\nimport pages\n",
    "bench/pages.py": "import json\n",
    "tests/rig/__init__.py": "",
    "tests/rig/statistics.py": "import statistics\n",
}


def check(folder, **changes):
    subprocess.run(["git", "init", "-q", folder], check=True)
    for name, text in {**GOOD, **changes}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert (done.returncode == 0) == (done.stdout == "folders: ok\n"), done
    return done.stdout.splitlines()[:-1] if done.returncode == 0 else done.stdout.splitlines()


def test_a_tree_that_keeps_to_its_tables_is_fine(tmp_path):
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    "name, text, says",
    [
        (
            "base/src/log.cpp",
            '#include "freeride/worker/x.hpp"\n',
            "base/src/log.cpp:1: base/ may not use worker/ (freeride/worker/x.hpp)",
        ),
        ("base/src/log.cpp", "\n#include <zmq.h>\n", "base/src/log.cpp:2: base/ may not use ZeroMQ (zmq.h)"),
        (
            "worker/loop/loop.hpp",
            '#include "tasks/task.hpp"\n',
            "worker/loop/loop.hpp:1: worker/loop/ may not use worker/tasks/ (tasks/task.hpp)",
        ),
        (
            "hooks/python/freeride/_hook.py",
            "import pages\n",
            "hooks/python/freeride/_hook.py:1: hooks/ may not use bench/ (pages)",
        ),
        ("bench/run.py", "from freeride import _hook\n", "bench/run.py:1: _hook is hooks/'s own"),
        ("bench/run.py", "def late():\n    from freeride._hook import late\n", "bench/run.py:2: _hook is hooks/'s own"),
        ("new/x.c", "", "new/ is not in ARCHITECTURE.md's table"),
        ("bench/run.py", "import (\n", "bench/run.py:1: invalid syntax"),
    ],
)
def test_what_breaks_a_table_is_named_with_its_line(tmp_path, name, text, says):
    assert says in check(tmp_path, **{name: text})


def test_modules_that_import_each_other_are_a_circle(tmp_path):
    said = check(tmp_path, **{"bench/pages.py": "import run\n"})
    assert said == ["modules import each other in a circle: bench/pages.py → bench/run.py → bench/pages.py"]


def test_modules_of_a_package_that_import_each_other_are_a_circle(tmp_path):
    said = check(tmp_path, **{"hooks/python/freeride/_hook.py": "from .measure import late\n"})
    assert said == [
        "modules import each other in a circle: hooks/python/freeride/_hook.py → hooks/python/freeride/measure.py → hooks/python/freeride/_hook.py"
    ]


def test_rooms_that_use_each_other_are_a_circle_though_the_table_lets_both(tmp_path):
    readme = GOOD["worker/README.md"].replace("| one task | loop |", "| one task | all |")
    said = check(tmp_path, **{"worker/README.md": readme, "worker/tasks/task.cpp": '#include "daemon/main.hpp"\n'})
    assert said == ["rooms of worker/ use each other in a circle: daemon → tasks → daemon"]


def test_folders_that_use_each_other_are_a_circle_though_the_table_lets_both(tmp_path):
    table = GOOD["ARCHITECTURE.md"].replace("| what all use | – |", "| what all use | worker |")
    said = check(tmp_path, **{"ARCHITECTURE.md": table, "base/src/log.cpp": '#include "freeride/worker/x.hpp"\n'})
    assert said == ["folders use each other in a circle: base → worker → base"]


def test_a_module_of_many_namesakes_is_the_one_on_the_path(tmp_path):
    others = {
        "hooks/examples/run.py": "",
        "tests/e2e/test_it.py": "",
        "tests/gpu/start.py": 'import sys\nsys.path.append("bench")\nimport run\n',
    }
    assert check(tmp_path, **others, **{"bench/pages.py": "import start\n"})[0].endswith(
        "bench/pages.py → tests/gpu/start.py → bench/run.py → bench/pages.py"
    )
