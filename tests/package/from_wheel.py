"""Side tasks beside a training of the example, all of it a wheel's that is installed in the virtual environment VENV: the
programs by the commands that pip has made, the training by the environment's Python. Says as JSON what came of it.
Usage: from_wheel.py VENV"""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from rig.system import System
from rig.tree import Tree


def harvest(venv):
    """Until pagerank has made some steps: its counters, and the files of the programs that were started."""
    (package,) = venv.glob("lib/python3*/site-packages/freeride")
    tree = Tree(venv / "bin", package / "_tree/plugins", package.parent)
    with System(tree, job="gpt", env={"PYTHONPATH": ""}) as system:
        system.start_manager()
        for core in range(2):
            system.start_worker(f"cpu-{core}")
        system.wait_workers(2)
        words = ["--stages", "2", "--cores", "0,1", "--seconds", "600", "--hook", "on"]
        system.start("training", [venv / "bin/python", package / "_tree/examples/train_gpt.py", *words])
        system.wait_workers(2, trained=True, seconds=240)
        system.load("pagerank.so", "pagerank", "--stage", "1", params={"scale": 12})
        system.wait_steps("pagerank", more=3, seconds=240)  # beside others on these cores it gets little
        system.wait(lambda: system.task("pagerank")["counters"]["harvested_ns"] > 1_000_000, "a harvested millisecond")
        programs = [
            os.readlink(f"/proc/{each.pid}/exe") for name, each in system.processes.items() if name != "training"
        ]
        return {**system.task("pagerank")["counters"], "programs": programs}


if __name__ == "__main__":
    print(json.dumps(harvest(pathlib.Path(sys.argv[1]))))
