"""A training in JAX: its idle phases, and that they change nothing."""

import json
import subprocess
import sys

from freeride import pages
from support import SOURCE, WATCHDOG, Worker, environment

WORDS = ["--iterations", "20", "--save-every", "5", "--save-seconds", "0.01"]


def start(tmp_path, *words):
    return subprocess.Popen(
        [sys.executable, SOURCE / "hooks/examples/jax_loop.py", *WORDS, *words],
        env=environment(tmp_path, JAX_PLATFORMS="cpu"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    out, err = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 0 and "freeride" not in err, err
    return [json.loads(line) for line in out.splitlines()]


def test_phases_are_marked_and_losses_the_same(tmp_path):
    plain = ended(start(tmp_path, "--hook", "off"))
    worker = Worker(tmp_path, "cpu-0")
    hooked = start(tmp_path)
    page = worker.take()
    assert ended(hooked) == plain and len(plain) == 4
    worker.close()
    view = page.copy()
    assert view.framework.startswith(b"jax ") and view.iteration == 4
    assert [(phase.name, phase.count) for phase in view.phases[:2]] == [(b"save", 4), (b"eval", 4)]
    waits = [pages.state_wait(record.state_word) for _, record in pages.finished_bubbles(page)]
    assert waits == [pages.phase_wait(0), pages.phase_wait(1)] * 4
