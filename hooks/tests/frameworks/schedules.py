"""hooks/tests/model/schedules.txt: the calls that the model check works with have to be those that the frameworks make."""

import os

import torch

from support import SOURCE

PATH = SOURCE / "hooks/tests/model/schedules.txt"
HEAD = """# Point-to-point calls of one iteration, a line a rank, recorded in real trainings by `make test-frameworks`: see hooks/tests/frameworks/calls.py.
# FREERIDE_WRITE_SCHEDULES=1 make test-frameworks writes it anew; FREERIDE_WRITE_SCHEDULES=beside make test-newest what another torch does otherwise.
"""


def check(name, ranks):
    """`ranks`: each rank's calls. With FREERIDE_WRITE_SCHEDULES they are written down instead."""
    known = _read()
    made = [" ".join(calls) for calls in ranks]
    write, of_this_torch = (
        os.environ.get("FREERIDE_WRITE_SCHEDULES"),
        f"{name}, torch {'.'.join(torch.__version__.split('.')[:2])}",
    )
    if write and (write != "beside" or known.get(name) != made):
        known[of_this_torch if write == "beside" else name] = made
        PATH.write_text(
            HEAD
            + "".join(f"schedule {name}\n" + "".join(line + "\n" for line in lines) for name, lines in known.items())
        )
    assert made in (known.get(of_this_torch), known.get(name)), (
        f"{name}: {PATH} has other calls than this version makes; FREERIDE_WRITE_SCHEDULES=1 writes them anew"
    )


def _read():
    known, lines = {}, []
    for line in PATH.read_text().splitlines() if PATH.exists() else ():
        if line.startswith("schedule "):
            lines = known[line[len("schedule ") :]] = []
        elif not line.startswith("#"):
            lines.append(line)
    return known
