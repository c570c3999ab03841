"""Runs a function right after a module was imported by somebody else, so that nothing is imported before the training does it."""
import importlib.abc
import importlib.util
import sys

from . import _hook

_waiting = {}  # module's name -> what to call with it


def after(name, function):
    """Calls function(module): now, if the module is there, else when it has been imported. An error of it switches the hook off."""
    module = sys.modules.get(name)
    if module is not None:
        _run(function, module)
        return
    if not _waiting:
        sys.meta_path.insert(0, _Finder())
    _waiting[name] = function


def _run(function, module):
    try:
        function(module)
    except Exception as error:
        _hook.fail(error)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self):
        self._busy = False

    def find_spec(self, name, path=None, target=None):
        if name not in _waiting or self._busy:
            return None
        self._busy = True  # find the real one without meeting ourselves
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(self, spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, finder, loader):
        self._finder, self._loader = finder, loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        function = _waiting.pop(module.__name__, None)
        if not _waiting and self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        if function is not None:
            _run(function, module)
