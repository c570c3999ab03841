"""Puts the tests' folder on sys.path: tests import `rig` from there."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
