"""Hooks every Python that has this folder on its PYTHONPATH, as in a Slurm job with --freeride: arms the hook where torch
is about to be imported, and runs the sitecustomize that would have been the first without us. Nothing of ours raises. Of
Python before 3.7, which no torch of today has, it does the second alone; so this file is plain enough for Python 2."""

import os
import sys


class _BeforeTorch(object):  # noqa: UP004
    """The hook has to be there before torch is: its library comes between torch and the CUDA runtime. It stays where it
    is: whoever leaves the list while that is gone through makes the import skip the next one."""

    armed = False

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "torch" and not cls.armed:
            cls.armed = True
            _arm()


def _arm():
    try:
        from freeride._hook import hook, off

        if not off():
            hook.arm()
    except Exception as error:
        said = "freeride: not hooked: %s: %s; training goes on without\n"  # noqa: UP031
        sys.stderr.write(said % (type(error).__name__, error))


def _run_next():
    here = os.path.realpath(os.path.dirname(os.path.abspath(__file__)))
    others = [folder for folder in sys.path if os.path.realpath(folder or ".") != here]
    if sys.version_info < (3, 5):  # noqa: UP036
        import imp

        try:
            found = imp.find_module("sitecustomize", others)
        except ImportError:
            return
        imp.load_module("sitecustomize", *found)
        return
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if sys.version_info >= (3, 7):  # noqa: UP036
    sys.meta_path.insert(0, _BeforeTorch)
_run_next()
