"""Puts this folder on sys.path, as pytest does with a conftest.py's: tests import `rig` from here."""

import pathlib
import shutil
import tempfile

import pytest


@pytest.fixture
def opened():
    """A folder for an operator to open; not below /tmp, which a sandbox has to itself."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="data-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
