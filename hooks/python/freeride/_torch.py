"""Where torch.distributed is met: what a receive is, when its wait begins and ends, when an iteration ends.

Patched are methods of two classes, not functions: ProcessGroup's receives, which every `dist.recv`, `dist.irecv` and `dist.batch_isend_irecv`
ends in, note the Work they return, and Work.wait marks the wait of a noted one. So a function that the training imported earlier, a
P2POp made of it, or a schedule that posts early and waits late are all covered, and a receive is marked where it is *waited for*. Works of
collectives and of other groups are never noted, and pass through at the price of one look into a dictionary.
"""
import functools
import importlib
import importlib.abc
import importlib.util
import os
import sys
import threading
import weakref

from . import _hook

_noted = {}  # id of a Work -> weak reference to it; an entry lives as long as its Work, or until its wait
_verdicts = weakref.WeakKeyDictionary()  # process group -> is it a pipeline's
_rule = ("world",)
_group = None
_armed = False
_stepping = threading.local()
_C10D = "torch.distributed.distributed_c10d"


def parse_rule(text):
    """("world",), ("any",), ("size", n) or ("ranks", (…)) from FREERIDE_GROUP's text."""
    text = (text or "world").strip()
    if text in ("world", "any"):
        return (text,)
    if text.startswith("size="):
        return ("size", int(text[5:]))
    if text.startswith("ranks="):
        return ("ranks", tuple(int(rank) for rank in text[6:].split(",")))
    raise ValueError(f'FREERIDE_GROUP="{text}" is none of world, any, size=N, ranks=A,B,…')


def check(arguments):
    """Raises for arguments that make no sense, while attach() can still say so."""
    group = arguments["group"]
    if group is None or isinstance(group, str):
        parse_rule(group or os.environ.get("FREERIDE_GROUP"))
    if arguments["iterations"] not in ("optimizer", "manual"):
        raise ValueError('iterations is "optimizer" or "manual"')


# ---- arming ------------------------------------------------------------------------------------------------------------------

class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Runs arm() right after torch.distributed was imported by somebody else."""

    def __init__(self):
        self._busy = False
        self._loader = None

    def find_spec(self, name, path=None, target=None):
        if name != _C10D or self._busy:
            return None
        self._busy = True  # find the real one without meeting ourselves
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            arm(module)
        except Exception as error:
            _hook.fail(error)


def arm_at_import():
    if _C10D in sys.modules:
        arm()
    else:
        sys.meta_path.insert(0, _AfterImport())


def arm(c10d=None):
    """Patches torch.distributed (once) and attaches as soon as there is a default group."""
    global _armed
    if c10d is None:
        import torch.distributed
        if not torch.distributed.is_available():
            raise RuntimeError("this torch has no torch.distributed")
        import torch.distributed.distributed_c10d as c10d
    if not _armed:
        _armed = True
        _patch_init(c10d)
    if c10d.is_initialized():
        _attach_to(c10d)


def _patch_init(c10d):
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):
        result = original(*args, **kwargs)
        try:
            _attach_to(c10d)
        except Exception as error:
            _hook.fail(error)
        return result

    c10d.init_process_group = init_process_group
    package = sys.modules.get("torch.distributed")
    if package is not None and getattr(package, "init_process_group", None) is original:
        package.init_process_group = init_process_group


def _attach_to(c10d):
    global _rule, _group
    world = c10d._get_default_group()
    given = _hook._arguments
    if given is not None:
        group = given["group"]
        if group is None or isinstance(group, str):
            _rule, _group = parse_rule(group or os.environ.get("FREERIDE_GROUP")), None
        else:
            _rule, _group = ("given",), group
        if group is not None and not isinstance(group, str):
            rank, size = c10d.get_rank(group), c10d.get_world_size(group)
        else:
            rank, size = c10d.get_rank(), c10d.get_world_size()
        if rank < 0:
            raise ValueError("this rank is not in the group given to attach()")
        torch = sys.modules["torch"]
        backend = c10d.get_backend(world)
        if not _hook.attach_now(rank, size, f"torch {torch.__version__} {backend}"):
            return
        if given["iterations"] == "optimizer":
            _patch_optimizers()
        _patch_waits()
    _verdicts.clear()
    if _rule == ("world",):
        _group = world


# ---- receives and their waits ----------------------------------------------------------------------------------------------------

def _is_pipeline(group):
    if group is _group:
        return True
    if _rule[0] in ("world", "given"):
        return False
    verdict = _verdicts.get(group)
    if verdict is None:
        import torch.distributed.distributed_c10d as c10d
        if _rule[0] == "any":
            verdict = True
        elif _rule[0] == "size":
            verdict = group.size() == _rule[1]
        else:
            verdict = tuple(c10d.get_global_rank(group, rank) if group is not c10d._get_default_group() else rank
                            for rank in range(group.size())) == _rule[1]
        _verdicts[group] = verdict
    return verdict


def _note(group, work):
    if work is None or not _is_pipeline(group):
        return
    key = id(work)
    _noted[key] = weakref.ref(work, lambda _, key=key: _noted.pop(key, None))


_patched = False


def _patch_waits():
    global _patched
    if _patched:
        return
    from torch._C import _distributed_c10d as native

    def noting(original):
        @functools.wraps(original)
        def receive(self, *args, **kwargs):
            work = original(self, *args, **kwargs)
            try:
                _note(self, work)
            except Exception as error:
                _hook.fail(error)
            return work
        return receive

    original_wait = native.Work.wait

    @functools.wraps(original_wait)
    def wait(self, *args, **kwargs):
        if not _noted or _noted.pop(id(self), None) is None or not _hook.begin():
            return original_wait(self, *args, **kwargs)
        try:
            return original_wait(self, *args, **kwargs)
        finally:
            _hook.end()

    for name in ("recv", "recv_anysource"):
        setattr(native.ProcessGroup, name, noting(getattr(native.ProcessGroup, name)))
    native.Work.wait = wait
    _patched = True


# ---- iterations ------------------------------------------------------------------------------------------------------------------

def _patch_optimizers():
    # By its full name: torch.optim deletes the attribute in some versions.
    module = importlib.import_module("torch.optim.optimizer")
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:  # torch 2
        register(lambda *_: _hook.iteration_end())
        return
    base = module.Optimizer
    original_init = base.__init__

    @functools.wraps(original_init)
    def init(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        try:
            _patch_step_of(type(self))
        except Exception as error:
            _hook.fail(error)

    base.__init__ = init
    pending = [base]
    while pending:  # optimizers made before us; a method looked up on an object is looked up on its class
        for kind in pending.pop().__subclasses__():
            pending.append(kind)
            _patch_step_of(kind)


def _patch_step_of(kind):
    for owner in kind.__mro__:
        step = owner.__dict__.get("step")
        if step is None:
            continue
        if owner.__module__ == "torch.optim.optimizer" or getattr(step, "_freeride", False):
            return
        owner.step = _counting(step)
        return


def _counting(original):
    @functools.wraps(original)
    def step(*args, **kwargs):
        outer = not getattr(_stepping, "inside", False)  # an optimizer that wraps another one makes one step
        _stepping.inside = True
        try:
            result = original(*args, **kwargs)
        finally:
            if outer:
                _stepping.inside = False
        if outer:
            _hook.iteration_end()
        return result

    step._freeride = True
    return step
