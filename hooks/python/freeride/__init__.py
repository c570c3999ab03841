"""FreeRide's training hook for torch.distributed pipelines.

    import freeride
    freeride.attach()          # before or after torch.distributed.init_process_group()

or, without a change to the source, `python -m freeride.run train.py …`. And for any training, where it leaves its device alone:

    with freeride.idle("rollout"):
        ...

Nothing here raises into the training, and an error of ours turns the hook off; see hooks/README.md. `FREERIDE_HOOK=0` in the environment
makes all of this do nothing.
"""

import os

__all__ = [
    "attach",
    "connected",
    "detach",
    "disable",
    "enable",
    "idle",
    "idle_begin",
    "idle_end",
    "iteration_end",
    "state",
    "status",
]
__version__ = "0.1.0"


def _hook_of_this_process():
    from ._hook import hook  # only now: freeride.run starts another process, and needs none

    return hook


def attach(
    job=None, device=None, stage=None, stages=None, replica=None, replicas=None, group=None, iterations="optimizer"
):
    """Hooks this rank, now or, if torch.distributed is not initialised yet, as soon as it is. Every argument left out comes from the
    environment (FREERIDE_JOB, FREERIDE_DEVICE, FREERIDE_STAGE, FREERIDE_STAGES, FREERIDE_REPLICA, FREERIDE_REPLICAS, FREERIDE_GROUP),
    else from torch: one stage a rank.

    group: the pipeline's process group, or a rule as in FREERIDE_GROUP: "world" (default), "any", "size=N", "ranks=0,2,4".
    iterations: "optimizer" (an iteration ends with an optimizer's step) or "manual" (call iteration_end()).
    Returns True if the hook is, or will be, on. A second call changes nothing.
    """
    return _hook_of_this_process().attach(
        job=job,
        device=device,
        stage=stage,
        stages=stages,
        replica=replica,
        replicas=replicas,
        group=group,
        iterations=iterations,
    )


def detach():
    """The training has ended; also done when the process exits. Functions of torch that attach() wrapped are put back."""
    _hook_of_this_process().detach()


def disable(reason=None):
    """No side task on this rank's device from now on; the training continues as usual."""
    _hook_of_this_process().disable(reason)


def enable():
    """Undoes disable(), from the next iteration on. False if the hook is off because of an error."""
    return _hook_of_this_process().enable()


def iteration_end():
    """An iteration ends here: for training loops whose optimizer is not a torch.optim.Optimizer. From the first call on, optimizer
    steps no longer count."""
    _hook_of_this_process().iteration_end(explicit=True)


def idle(name, seconds=None, open=False):
    """An idle phase: a block, `with freeride.idle("rollout"): ...`, or a function, `@freeride.idle("eval")`, also an `async` one, in which
    training leaves its device alone, so that side tasks may use it. Needs no pipeline and no attach(): the first phase attaches by itself.

    name: why, such as "rollout", "save", "eval"; at most 31 bytes, and 16 names in a process. seconds: how long it lasts, where that is
    known; else that is learned, by name. open: nobody knows how long it lasts, and nothing is learned.

    With torch on a GPU a phase begins when the current stream comes to this place; work of other streams must be over. Without torch, as
    with JAX, it begins now: wait for your work first, say by block_until_ready(), and name the device in FREERIDE_DEVICE. Ends at once, also
    by an exception, which goes on. A phase inside of another one is part of that. Never raises by itself, and never waits for the device.
    """
    hook = _hook_for_phases()
    from ._idle import NoPhase, Phase  # only now, as above

    return NoPhase() if hook is None else Phase(hook.phases, name, seconds, open)


def idle_begin(name, seconds=None, open=False):
    """The same where no block fits. Each begin needs an idle_end(), in the same thread."""
    hook = _hook_for_phases()
    if hook is not None:
        hook.phases.begin(name, seconds, open, pair=True)


def idle_end():
    """Training is about to use its device again: ends what this thread's last idle_begin() has begun."""
    hook = _hook_for_phases()
    if hook is not None:
        hook.phases.end_pair()


def _hook_for_phases():
    """None with FREERIDE_HOOK=0."""
    if os.environ.get("FREERIDE_HOOK") == "0":
        return None
    hook = _hook_of_this_process()
    if hook.at_iteration_end is None and os.environ.get(
        "FREERIDE_OBSERVE"
    ):  # of a training that has imported no torch so far
        from . import observe

        hook.inform("what observe shows", observe.begin)
    return hook


def state():
    """ "off" (not attached), "waiting" (for init_process_group), "starting", "active", "disabled" or "gone"."""
    return _hook_of_this_process().state()


def status():
    """(state, why, reason) of this rank, now: state(); a name of the closed set of reasons for which its bubbles cannot be used, "usable"
    where nothing is in the way; and a sentence that says what to do."""
    return _hook_of_this_process().status()


def connected():
    """True while a worker has this rank's page."""
    return _hook_of_this_process().connected()
