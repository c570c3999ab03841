"""A training of a model of so many MiB that is saved after every few steps. Arguments: its device, and the MiB.

Each line of output is an iteration as JSON. It ends when it is ended."""

import json
import os
import sys
import time

import torch

import freeride

device, mib = sys.argv[1], int(sys.argv[2])
width = 4096 if device == "cuda" else 512
layers = [torch.nn.Linear(width, width, bias=False) for _ in range(max(1, mib * (1 << 20) // (4 * width * width)))]
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
path = os.path.join(os.environ["FREERIDE_SAVE_FOLDER"], f"saving-{os.getpid()}.pt")
freeride.attach()
iteration = 0
try:
    while True:
        begin = time.monotonic()
        for _ in range(8 if device == "cuda" else 2):
            loss = model(torch.randn(4096 if device == "cuda" else 16, width, device=device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        value = loss.item()
        computed = time.monotonic()
        torch.save(model.state_dict(), path)
        line = {"iteration": iteration, "compute_s": computed - begin, "save_s": time.monotonic() - computed}
        print(json.dumps({**line, "loss": value}), flush=True)
        iteration += 1
finally:
    if os.path.exists(path):
        os.unlink(path)
