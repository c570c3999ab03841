"""What a job is called that nobody has named: the same on all its ranks, and like no other of its user's in a cluster."""

import os
import re
import sys
import threading

_KEY = "freeride/job"  # in training's own store
_PATIENCE_S = 2  # for an answer of the store, which is one message to rank 0's process and back
_MOST_BYTES = 24  # of a script's or a cluster's name: a page has room for 63 in all
# torchrun makes one up where nobody has named the run: always with --standalone, and from torch 2.13 on for any run on one host
_MADE_UP = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def default_job(c10d, before=None, alone=False):
    """torchrun's run id where somebody has chosen one; else the script's name, the Slurm job's where there is one, and some
    random digits that the ranks agree on. `before`: what this rank's job was called in another default group, if in any.
    c10d: None where there is no default group; `alone`: and no other rank. Never raises; waits for nobody but the store, and
    that for two seconds."""
    elastic = os.environ.get("TORCHELASTIC_RUN_ID")
    made_up = elastic and _MADE_UP.fullmatch(elastic)
    if elastic and elastic != "none" and not made_up:
        return elastic
    main = sys.modules.get("__main__")
    parts = [_cut(os.path.basename(getattr(main, "__file__", None) or sys.argv[0] or "python"))]
    slurm = os.environ.get("SLURM_JOB_ID")
    if slurm:
        parts += [_cut(os.environ.get("SLURM_CLUSTER_NAME") or "slurm"), _cut(slurm)]
    # Also under Slurm: there may be several trainings in one allocation.
    # The digits of a run are the same after its ranks were started again.
    mine = before or "-".join([*parts, elastic[:8] if made_up else os.urandom(4).hex()])
    agreed = _agreed(c10d, mine) if c10d is not None else mine if alone else None
    if agreed:
        return agreed
    if made_up:
        return "-".join([*parts, elastic[:8]])
    return "-".join(parts if slurm else [*parts, os.environ.get("MASTER_PORT", "0")])


def _cut(name):
    return name.encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore")


def _agreed(c10d, mine):
    """`mine` of the rank that came first; None where the store does not tell. compare_set is answered at once, where a
    get would wait for a rank that may never ask."""
    answers = []

    def ask():
        try:
            answers.append(c10d._get_default_store().compare_set(_KEY, "", mine).decode())
        except Exception:  # a store without it, or a torch that keeps it elsewhere
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return answers[0] if answers else None
