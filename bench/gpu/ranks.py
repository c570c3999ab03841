"""Starts the ranks of one training on this host's GPUs."""

import json
import pathlib
import sys

from rig.gpus import gpus
from rig.processes import Processes
from rig.system import new_folder
from rig.tree import environment

HERE = pathlib.Path(__file__).resolve().parent
HOOKED = ("-m", "freeride.run")
# Layers are a stage's.
BIG = {"layers": 8, "width": 3072, "heads": 24, "length": 1024, "batch": 4, "micro_batches": 4, "vocabulary": 32000}
SMALL = {"layers": 4, "width": 512, "heads": 8, "length": 256, "batch": 2, "micro_batches": 4, "vocabulary": 1000}


def sized(size, stages):
    return dict(size, layers=size["layers"] * stages, stages=stages)


def machine():
    """This host's GPUs, for a record."""
    return [f"{gpu.name}, {gpu.driver}" for gpu in gpus()]


class Ranks(Processes):
    """`program` with the job as its argument, one on each GPU. With a gate they import what they need and wait for
    go()."""

    def __init__(
        self,
        count,
        hooks,
        job,
        program=(*HOOKED, HERE / "rank.py"),
        path=(),
        run_dir=None,
        per_rank=None,
        gate=False,
        **more,
    ):
        """`hooks`: folder of the package freeride; `path`: more folders that the ranks import from; `run_dir`: where
        workers' sockets are, else a folder without any; `more` of the environment, of all, and of {rank: one}
        `per_rank`."""
        folder = new_folder()
        super().__init__(
            folder,
            {
                **environment(),
                "PYTHONPATH": ":".join(map(str, (hooks, HERE, *path))),
                "PYTHONUNBUFFERED": "1",
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                "NCCL_NVLS_ENABLE": "0",
                "FREERIDE_RUN_DIR": str(run_dir or folder),
                "FREERIDE_JOB": "bench",
                **more,
            },
        )
        self.count, self.job = count, dict(job, out=f"{folder}/result", gate=gate and f"{folder}/gate")
        bound = [
            "timeout",
            "-k",
            "2",
            (2 if gate else 1) * job.get("watchdog_s", 100) + 25,
            "setpriv",
            "--pdeathsig",
            "KILL",
        ]
        self.ranks = self.start_ranks(
            [*bound, sys.executable, *program, json.dumps(self.job)], count, per_rank=per_rank, stdout=True
        )

    def go(self):
        (self.folder / "gate").touch()

    def text(self, rank, kind="log", most=1500):
        """What a rank said: "log", stderr; "out", stdout."""
        return self.log(f"rank-{rank}", most, kind)

    def said(self):
        """What the hook said, for people."""
        return [
            [line for line in self.text(rank, most=100000).splitlines() if line.startswith("freeride:")]
            for rank in range(self.count)
        ]

    def results_when_ended(self):
        """Results of the ranks (None for one that left none), and their exit codes."""
        codes = [process.wait() for process in self.ranks]
        return self.results(), codes

    def results(self):
        results = []
        for rank in range(self.count):
            try:
                results.append(json.loads(pathlib.Path(f"{self.job['out']}.{rank}").read_text()))
            except (OSError, ValueError):
                results.append(None)
        return results
