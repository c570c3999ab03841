"""Puts this folder on sys.path, as pytest does with a conftest.py's: tests import `rig` from here."""
