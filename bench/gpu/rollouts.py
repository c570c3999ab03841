"""A training in the manner of reinforcement learning whose GPU is never behind: a rollout of planned length, in which the GPU is idle, and
an update of a policy as large as GPT-2 (hooks/examples/grpo.py) that takes about a second of the GPU's time. Arguments: the device, a
file for a line of JSON each iteration, and the rollouts' lengths in seconds. It ends when it is ended."""

import json
import pathlib
import sys
import time

import torch

import freeride

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "hooks/examples"))
from grpo import VOCABULARY, Policy

device, path, lengths = sys.argv[1], sys.argv[2], [float(length) for length in sys.argv[3].split(",")]
cuda = device == "cuda"
batch, length = (512, 64) if cuda else (8, 16)
policy = Policy("gpt2" if cuda else "tiny", length).to(device)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
tokens = torch.randint(VOCABULARY, (batch, length), device=device)


def update():
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(policy(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return loss.item()


for _ in range(3):
    update()
with open(path, "w", buffering=1) as log:
    iteration = 0
    while True:
        begin_ns = time.monotonic_ns()
        with freeride.idle("rollout"):
            time.sleep(lengths[iteration % len(lengths)])
        rollout_end_ns = time.monotonic_ns()
        loss = update()
        line = {"begin_ns": begin_ns, "rollout_end_ns": rollout_end_ns, "end_ns": time.monotonic_ns(), "loss": loss}
        log.write(json.dumps(line) + "\n")
        iteration += 1
