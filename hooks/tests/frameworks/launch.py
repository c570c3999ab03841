"""Starts ranks of a training script of this folder, hooked or not, and gives what each wrote down."""

import json
import pathlib
import subprocess
import sys

from support import WATCHDOG, environment, free_port

HERE = pathlib.Path(__file__).resolve().parent


def start(script, size, plan, folder, hooked, off=(), **env):
    """The ranks' processes. Each writes its result to FOLDER/out.RANK at its end. The hook is switched off for the ranks in `off`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan").write_text(json.dumps(plan))
    through = ["-m", "freeride.run"] if hooked else []
    port = free_port()
    ranks = []
    for rank in range(size):
        settings = environment(
            folder,
            RANK=rank,
            LOCAL_RANK=rank,
            WORLD_SIZE=size,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            DS_ACCELERATOR="cpu",
            **env,
        )
        if rank in off:
            settings["FREERIDE_HOOK"] = "0"
        settings["PYTHONPATH"] += f":{HERE}"
        with open(folder / f"said.{rank}", "w") as said:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, *through, str(HERE / script), str(folder / "plan"), str(folder / "out")],
                    env=settings,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            )
    return ranks


def said(folder, rank):
    return (folder / f"said.{rank}").read_text(errors="replace")


def finish(ranks, folder, watchdog=4 * WATCHDOG):
    """Waits for all and returns their results; a rank that hangs or fails fails the test, with what it said."""
    try:
        for rank, process in enumerate(ranks):
            assert process.wait(timeout=watchdog) == 0, said(folder, rank)[-4000:]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    return [json.loads((folder / f"out.{rank}").read_text()) for rank in range(len(ranks))]


def run(script, size, plan, folder, hooked, **how):
    return finish(start(script, size, plan, folder, hooked, **how), folder)
