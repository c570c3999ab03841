"""What torch's distributed checkpoints and safetensors save is the same, and a phase where training waits for it."""

import json

from support import python

CODE = """
import json, os, sys, tempfile
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
import freeride
from freeride._hook import hook

freeride.attach(stage=0, stages=1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
state = {f"w{at}": torch.arange(2_000_000.0) + at for at in range(4)}
folder = tempfile.mkdtemp()
counts = []
def saved(save):
    before = hook.page().phases[0].count
    save()
    counts.append(hook.page().phases[0].count - before)
def same(found):
    return all(torch.equal(found[name], state[name]) for name in state)
def load(name):
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(found, checkpoint_id=f"{folder}/{name}")
    return found

saved(lambda: dcp.save(state, checkpoint_id=f"{folder}/a"))
saved(lambda: dcp.async_save(state, checkpoint_id=f"{folder}/b").result())  # written by another thread, while training goes on
saved(lambda: save_file(state, f"{folder}/c"))
assert same(load("a")) and same(load("b")) and same(load_file(f"{folder}/c"))
print(json.dumps(counts))
dist.destroy_process_group()
"""


def test_what_training_waits_for_is_a_phase(tmp_path):
    done = python(CODE, run_dir=tmp_path, FREERIDE_IDLE="save")
    assert done.returncode == 0 and "freeride: " not in done.stderr, done.stderr
    assert json.loads(done.stdout) == [4, 0, 1]
