"""Runs a function right after a module was imported by somebody else, so that nothing is imported before the training does it."""

import importlib.abc
import importlib.util
import sys


class Imports(importlib.abc.MetaPathFinder):
    """Modules that are waited for, and what to call with each. `fail` gets the errors."""

    def __init__(self, fail):
        self._fail = fail
        self._waiting = {}  # module's name -> what to call with it
        self._finding = set()  # names; the import system asks one finder at a time, whatever the thread

    def after(self, name, function):
        """Calls function(module): now, if the module is there, else when it has been imported. Its errors go to `fail`."""
        module = sys.modules.get(name)
        if module is not None:
            self._run(function, module)
            return
        if not self._waiting:
            sys.meta_path.insert(0, self)
        self._waiting[name] = function

    def forget(self):
        """Waits for nothing any more."""
        self._waiting.clear()
        self._leave()

    def find_spec(self, name, path=None, target=None):
        if name not in self._waiting or name in self._finding:
            return None
        self._finding.add(name)  # find the real one without meeting ourselves
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(self, spec.loader)
        return spec

    def imported(self, module):
        function = self._waiting.pop(module.__name__, None)
        if not self._waiting:
            self._leave()
        if function is not None:
            self._run(function, module)

    def _leave(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _run(self, function, module):
        try:
            function(module)
        except Exception as error:
            self._fail(error)


class _Loader(importlib.abc.Loader):
    def __init__(self, imports, loader):
        self._imports, self._loader = imports, loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imports.imported(module)
