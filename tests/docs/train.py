"""The reader's own training, for the commands that name a train.py: a pipeline over gloo, one stage a rank, that knows nothing of FreeRide. Takes
any flags. Alone it is a pipeline of one stage."""

import os

import torch
import torch.distributed as dist

torch.set_num_threads(1)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if ranks > 1 else 0
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    given = torch.ones(16, 64)
    if rank > 0:
        dist.recv(given, rank - 1)
    made = model(given.requires_grad_())
    if rank + 1 < ranks:
        dist.send(made.detach(), rank + 1)
        gradient = torch.empty(16, 64)
        dist.recv(gradient, rank + 1)
        made.backward(gradient)
    else:
        made.sum().backward()
    if rank > 0:
        dist.send(given.grad, rank - 1)
    optimizer.step()
    optimizer.zero_grad()
