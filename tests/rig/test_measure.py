"""What benchmarks and GPU tests, which no test here can run, import of the hook by name."""

import pathlib
import re

import pytest

from freeride import measure

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = [
    path
    for folder in ("bench/gpu", "tests/gpu")
    for path in (SOURCE / folder).glob("*.py")
    if "measure." in path.read_text()
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_measurements_use_of_the_hook_is_there(path):
    used = set(re.findall(r"\bmeasure\.(\w+)", path.read_text()))
    assert used and used <= set(measure.__all__) and all(hasattr(measure, name) for name in measure.__all__)
