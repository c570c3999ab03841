"""FreeRide's training hook for torch.distributed pipelines.

    import freeride
    freeride.attach()          # before or after torch.distributed.init_process_group()

or, without a change to the source, `python -m freeride.run train.py …`. Nothing here raises into the training, and an error of ours turns the
hook off; see hooks/README.md. `FREERIDE_HOOK=0` in the environment makes all of this do nothing.
"""

__all__ = ["attach", "detach", "disable", "enable", "iteration_end", "state", "status", "connected"]
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
