"""Puts the tests' folder on sys.path: tests import `rig` from there. Keeps whether a test has failed for its fixtures."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

FAILED = pytest.StashKey()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        item.stash[FAILED] = outcome.get_result().failed
