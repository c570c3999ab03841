"""The training of one group of cells: ranks of train.py, told phase by phase what to train."""

import json
import pathlib
import subprocess
import time

from rig.processes import PATIENCE_S, Lines, write_whole

HERE = pathlib.Path(__file__).resolve().parent


class Training:
    """Ranks of train.py, which wait with their imports done until go()."""

    def __init__(self, system, python, hooked, ranks, cores, env):
        self.system, self.phase, self.lines = system, None, None
        self.job = {"go": str(system.root / "go"), "orders": str(system.root / "orders"), "cores": cores}
        self.python, self.hooked, self.env, self.ranks = python, hooked, env, ranks

    def prepare(self, first):
        through = ["-m", "freeride.run"] if self.hooked else []
        words = [self.python, *through, HERE / "train.py", json.dumps(dict(self.job, **first))]
        processes = self.system.start_ranks(
            words, self.ranks, self.env, first={"stdout": subprocess.PIPE, "text": True}
        )
        self.lines = Lines(processes[0].stdout)

    def go(self):
        pathlib.Path(self.job["go"]).touch()
        self.phase = 0

    def order(self, job):
        """`job` comes after this phase; None: the end. Near, but ahead of every rank."""
        last = next((line["iteration"] for line in reversed(self.lines.lines) if "iteration" in line), 0)
        self.phase += 1
        write_whole(self.job["orders"], json.dumps({"phase": self.phase, "at": last + 8, "job": job}))

    def ready_ms(self, seconds=PATIENCE_S):
        """Waits until the phase has warmed up; its iterations' length."""

        def said():
            return next((line["ready"] for line in reversed(self.lines.lines) if line.get("phase") == self.phase), None)

        return self.system.wait(said, f"warm-up of the training's phase {self.phase}", seconds)

    def iterations(self, from_ns, to_ns):
        """Those that began and ended in between."""
        return [
            line
            for line in list(self.lines.lines)
            if "iteration" in line and line["end_ns"] <= to_ns and line["end_ns"] - line["ms"] * 1e6 >= from_ns
        ]

    def end(self):
        self.order(None)
        self.system.check()
        limit = time.monotonic() + PATIENCE_S
        for rank in range(self.ranks):
            self.system.finish(f"rank-{rank}", max(1, limit - time.monotonic()))
