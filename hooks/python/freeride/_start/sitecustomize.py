"""Hooks every Python that has this folder on its PYTHONPATH: arms the hook where torch is about to be imported, and runs
the sitecustomize that would have been the first without us. Nothing of ours raises.

In a Slurm job with --freeride the folder stays there, for all that the job starts. freeride.run names it for the one
process that it becomes: here that process' environment and sys.path become again what they would have been. A process
that the script spawns through multiprocessing executes this file, too (_processes.py).

Of Python before 3.7, which no torch of today has, it runs the other sitecustomize alone; so it is plain enough for
Python 2. It imports nothing that Python has not imported by itself before the script: whoever looks finds no more."""

import os
import sys


class _BeforeTorch(object):  # noqa: UP004
    """The hook has to be there before torch is: its library comes between torch and the CUDA runtime. It stays where it
    is: whoever leaves the list while that is gone through makes the import skip the next one."""

    armed = False
    package = None  # the folder that has the package freeride, where sys.path may not lead to it

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "torch" and not cls.armed:
            cls.armed = True
            _arm()
        if name == "freeride" and cls.package is not None:
            # importlib.machinery has the same one, and would be imported for it.
            found = sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name, [cls.package])
            if cls.package not in sys.path:
                sys.path_importer_cache.pop(cls.package, None)
            return found
        return None


def _arm():
    try:
        from freeride._hook import hook, off

        if not off():
            hook.arm()
            if os.environ.get("FREERIDE_OBSERVE"):
                from freeride import observe

                observe.begin()
    except Exception as error:
        said = "freeride: not hooked: %s: %s; training goes on without\n"  # noqa: UP031
        sys.stderr.write(said % (type(error).__name__, error))


def _watch():
    try:
        from freeride._processes import processes

        processes.watch_script()
    except Exception as error:
        said = "freeride: whether a rank is hooked is not known: %s: %s\n"  # noqa: UP031
        sys.stderr.write(said % (type(error).__name__, error))


def _put_back(here):
    """What freeride.run has changed for this process. Returns the folder of the package."""
    before = os.environ.pop("FREERIDE_PYTHONPATH", None)
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before
    if here in sys.path:
        sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    return os.environ.pop("FREERIDE_START")


def _run_next(here):
    kept, here = sys.path[:], os.path.realpath(here)
    others = [folder for folder in sys.path if os.path.realpath(folder or ".") != here]
    if sys.version_info < (3, 5):  # noqa: UP036
        import imp

        try:
            found = imp.find_module("sitecustomize", others)
        except ImportError:
            return
        imp.load_module("sitecustomize", *found)
        return
    # Python finds it as it would have without us; or nothing, and then says so to its module site, which expects that.
    sys.path[:] = others
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    finally:
        if sys.path == others:
            sys.path[:] = kept


if __name__ == "sitecustomize":
    _here = os.path.dirname(os.path.abspath(__file__))
    if "FREERIDE_START" in os.environ:
        _BeforeTorch.package = _put_back(_here)
    if sys.version_info >= (3, 7):  # noqa: UP036
        sys.meta_path.insert(0, _BeforeTorch)
    if _BeforeTorch.package is not None:
        _watch()
    _run_next(_here)
else:  # executed by _processes.py, with PACKAGE
    _BeforeTorch.package = globals()["PACKAGE"]
    sys.meta_path.insert(0, _BeforeTorch)
