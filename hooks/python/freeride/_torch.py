"""Where torch.distributed is met: what waits for a neighbour, when such a wait begins and ends, when an iteration ends.

Patched are methods of two classes, not functions: ProcessGroup's receives, which every `dist.recv`, `dist.irecv` and `dist.batch_isend_irecv`
ends in, and its small collectives note the Work they return, and Work.wait marks the wait of a noted one. So a function that the training
imported earlier, a P2POp made of it, or a schedule that posts early and waits late are all covered, and a receive is marked where it is
*waited for*. Which of them are the pipeline's is told by _pipeline.py; all others are never noted, and pass through at the price of one look
into a dictionary.
"""
import functools
import importlib
import os
import sys
import threading
import weakref

from . import _cuda, _frameworks, _hook, _imports, _pipeline

_noted = {}  # id of a Work -> weak reference to it; an entry lives as long as its Work, or until its wait
_armed = False
_postponed = False  # the attach: a framework will tell this rank's place in its pipeline
_stepping = threading.local()
_C10D = "torch.distributed.distributed_c10d"


def check(arguments):
    """Raises for arguments that make no sense, while attach() can still say so."""
    group = arguments["group"]
    if group is None or isinstance(group, str):
        _pipeline.parse_rule(group or os.environ.get("FREERIDE_GROUP"))
    if arguments["iterations"] not in ("optimizer", "manual"):
        raise ValueError('iterations is "optimizer" or "manual"')


# ---- arming ------------------------------------------------------------------------------------------------------------------

def arm_at_import():
    _imports.after(_C10D, arm)


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
        _frameworks.listen(_told)
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
    """There is a default group: attaches, or, where a framework will tell this rank's place, gets ready to."""
    global _postponed
    _hook._had_group = True
    given = _hook._arguments
    if given is None:
        return
    group = given["group"]
    if group is None or isinstance(group, str):
        _pipeline.set_rule(_pipeline.parse_rule(group or os.environ.get("FREERIDE_GROUP")))
        group = None
    else:
        _pipeline.set_rule(("given",), group)
    if given["iterations"] == "optimizer":
        _patch_optimizers()
    if _cuda.wanted(c10d):
        _cuda.patch(c10d)
    else:
        _patch_waits()
    placed = given["stage"] is not None or os.environ.get("FREERIDE_STAGE")
    _postponed = _pipeline.automatic() and not placed and _frameworks.expected()
    if not _postponed:
        _attach_as(c10d, group=group)
    elif _cuda.armed():
        _cuda.attach_later(functools.partial(_attach_as, c10d))  # should the framework tell nothing


def _attach_as(c10d, group=None, framework=None, ranks=None):
    global _postponed
    _postponed = False
    if _cuda.attach_later(functools.partial(_attach_as, c10d, group, framework, ranks)):
        return
    rank, size, place = c10d.get_rank(group), c10d.get_world_size(group), {}
    if rank < 0:
        raise ValueError("this rank is not in the group given to attach()")
    if ranks is not None:
        place = _place(ranks, rank, size)
    torch = sys.modules["torch"]
    backend = c10d.get_backend(c10d._get_default_group())
    if _cuda.armed():
        backend, place["cuda_rank"] = "nccl", c10d.get_rank()
    _hook.attach_now(rank, size, f"torch {torch.__version__} {backend}" + (f", {framework}" if framework else ""), **place)


def _place(ranks, rank, size):
    """Stage and replica of a rank whose pipeline is `ranks`, where all pipelines of the world have the same shape."""
    stages, first = len(ranks), min(ranks)
    stride = ranks[1] - ranks[0] if stages > 1 else 1
    replicas = max(1, size // stages)
    regular = stride > 0 and tuple(ranks) == tuple(range(first, first + stride * stages, stride))
    replica = first // (stride * stages) * stride + first % stride if regular else first
    return {"stage": tuple(ranks).index(rank), "stages": stages, "replica": min(replica, replicas - 1), "replicas": replicas}


def _told(framework, groups, ranks):
    """A framework has told this rank's pipeline."""
    c10d = sys.modules[_C10D]
    if not c10d.is_initialized() or c10d.get_rank() not in ranks:
        return
    world = c10d._get_default_group()
    _pipeline.tell([world if group is None else group for group in groups], ranks)
    if _postponed or _cuda.waiting():
        _attach_as(c10d, framework=framework, ranks=ranks)
    elif _pipeline.automatic():
        place = _place(ranks, c10d.get_rank(), c10d.get_world_size())
        if _hook.attached_elsewhere(**place):
            _hook.say(f"{framework} was imported after init_process_group, when this rank had attached with another place: import it before, or "
                      f"set FREERIDE_STAGE={place['stage']}, FREERIDE_STAGES={place['stages']}, FREERIDE_REPLICA={place['replica']}")


# ---- waits for other stages -------------------------------------------------------------------------------------------------------

def _note(work):
    if work is None:
        return
    if _postponed:  # the framework has told nothing, and the pipeline runs
        _attach_as(sys.modules[_C10D])
    key = id(work)
    _noted[key] = weakref.ref(work, lambda _, key=key: _noted.pop(key, None))


def _note_receive(group, work, args, kwargs):
    source = args[1] if len(args) > 1 else kwargs.get("srcRank", kwargs.get("src"))
    if _pipeline.receives(group, source):
        _note(work)


def _note_any_receive(group, work, *_):
    if _pipeline.receives(group, None):
        _note(work)


def _note_collective(group, work, args, kwargs):
    found = _pipeline.awaited_in_collective(group, args, kwargs)
    if found is not None and found[2]:
        _note(work)


_patched = False


def _patch_waits():
    global _patched
    if _patched:
        return
    from torch._C import _distributed_c10d as native

    def noting(original, note):
        @functools.wraps(original)
        def call(self, *args, **kwargs):
            work = original(self, *args, **kwargs)
            try:
                note(self, work, args, kwargs)
            except Exception as error:
                _hook.fail(error)
            return work
        return call

    original_wait = native.Work.wait

    @functools.wraps(original_wait)
    def wait(self, *args, **kwargs):
        if not _noted or _noted.pop(id(self), None) is None or not _hook.begin():
            return original_wait(self, *args, **kwargs)
        try:
            return original_wait(self, *args, **kwargs)
        finally:
            _hook.end()

    for note, names in ((_note_receive, ("recv",)), (_note_any_receive, ("recv_anysource",)),
                        (_note_collective, ("broadcast", "allreduce", "reduce", "barrier"))):
        for name in names:
            setattr(native.ProcessGroup, name, noting(getattr(native.ProcessGroup, name), note))
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
