"""Modules that the hook waits for."""

import importlib.abc
import sys

from freeride._imports import Imports


class Curious(importlib.abc.MetaPathFinder):
    """Imports one module while it searches for another."""

    def find_spec(self, name, path=None, target=None):
        if name == "freeride_outer":
            __import__("freeride_inner")


def test_a_module_imported_during_the_search_for_another_is_heard_of(tmp_path, monkeypatch):
    for name in ("freeride_outer", "freeride_inner"):
        (tmp_path / f"{name}.py").write_text("")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [Curious(), *sys.meta_path])
    heard, errors = [], []
    imports = Imports(errors.append)
    for name in ("freeride_outer", "freeride_inner"):
        imports.after(name, lambda module: heard.append(module.__name__))
    __import__("freeride_outer")
    assert (heard, errors) == (["freeride_inner", "freeride_outer"], [])
    assert imports not in sys.meta_path
