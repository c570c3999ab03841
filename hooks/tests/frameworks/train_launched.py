"""Two ranks of a pipeline written by hand, started by a launcher, which writes down what each has seen.

train_launched.py OUT [spawn|actors|fail|again] [--local_rank=N]     OUT.RANK gets a JSON object
  spawn, actors   this process starts the ranks itself: torch.multiprocessing.spawn, or a class in a spawned process each
  fail            rank 1 fails in its third iteration, unless its launcher has restarted it
  again           after three iterations the default group is destroyed and made again, with the ranks the other way round
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

ITERATIONS, MICRO_BATCHES, DIM = 6, 2, 4


def own_rank():
    """As scripts that know several launchers do it."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    raise SystemExit("no launcher")


def stage(rank, iterations, seed=7):
    torch.manual_seed(seed + rank)
    part = nn.Linear(DIM, DIM)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    losses = []
    for number in iterations:
        outputs = []
        for batch in range(MICRO_BATCHES):
            x = torch.full((DIM,), float(number + batch + 1))
            if rank == 1:
                x.requires_grad_(False)
                dist.recv(x, 0)
                x.requires_grad_(True)
            outputs.append((x, part(x)))
            if rank == 0:
                dist.send(outputs[-1][1].detach(), 1)
        for x, y in outputs:
            if rank == 1:
                loss = (y**2).sum()
                loss.backward()
                losses.append(loss.item().hex())
                dist.send(x.grad, 0)
            else:
                gradient = torch.zeros(DIM)
                dist.recv(gradient, 1)
                y.backward(gradient)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def train(rank, how, out):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    if how == "fail" and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        stage(rank, range(2))
        raise RuntimeError("a test's failure")
    if how == "again":
        losses = stage(rank, range(ITERATIONS // 2))
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        rank = 1 - rank
        dist.init_process_group("gloo", rank=rank, world_size=2)
        losses += stage(rank, range(ITERATIONS // 2, ITERATIONS))
    else:
        losses = stage(rank, range(ITERATIONS))
    found = {"losses": losses, "argv": sys.argv[1:], "file": __file__, "state": None}
    if "freeride" in sys.modules:
        import freeride
        from freeride._hook import hook

        found["state"] = freeride.state()
        page = hook.page()
        if page is not None:
            found.update(rank=page.rank, stage=page.stage, stages=page.stages, waits=page.waits)
            found.update(job=page.job.decode(), device=page.device.decode())
    with open(f"{out}.{rank}", "w") as file:
        json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


class Actor:
    """Made in the process that starts it, and used in another one."""

    def __init__(self, rank):
        self.rank = rank

    def run(self, out):
        train(self.rank, None, out)


def main():
    out, *rest = sys.argv[1:]
    how = next((word for word in rest if not word.startswith("--")), None)
    if how == "spawn":
        torch.multiprocessing.spawn(train, args=(how, out), nprocs=2)
    elif how == "actors":
        context = torch.multiprocessing.get_context("spawn")
        ranks = [context.Process(target=Actor(rank).run, args=(out,)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
            assert rank.exitcode == 0
    else:
        train(own_rank(), how, out)


if __name__ == "__main__":
    main()
