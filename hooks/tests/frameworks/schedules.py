"""hooks/tests/model/schedules.txt: the calls that the model check works with have to be those that the frameworks make."""

import os

from support import SOURCE

PATH = SOURCE / "hooks/tests/model/schedules.txt"
HEAD = """# Point-to-point calls of one iteration, a line a rank, recorded in real trainings by `make test-frameworks`: see hooks/tests/frameworks/calls.py.
# FREERIDE_WRITE_SCHEDULES=1 make test-frameworks writes it anew.
"""


def check(name, ranks):
    """`ranks`: each rank's calls. With FREERIDE_WRITE_SCHEDULES they are written down instead."""
    known = _read()
    made = [" ".join(calls) for calls in ranks]
    if os.environ.get("FREERIDE_WRITE_SCHEDULES"):
        known[name] = made
        PATH.write_text(
            HEAD
            + "".join(f"schedule {name}\n" + "".join(line + "\n" for line in lines) for name, lines in known.items())
        )
    assert known.get(name) == made, (
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
