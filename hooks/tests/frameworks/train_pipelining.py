"""One rank of real torch.distributed.pipelining trainings, one after the other: those of the plan (a JSON file), each with a tiny model.

    train_pipelining.py PLAN OUT     with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; OUT.RANK gets what happened, as JSON

Knows nothing of FreeRide, except that it writes down what a hook marked where one is there.
"""

import inspect
import json
import sys

import torch
import torch.distributed as dist
import torch.distributed.pipelining as pipelining
from torch import nn
from torch.distributed.pipelining import schedules

import calls

DIM, ROWS = 8, 2
hooked = "freeride" in sys.modules


class Part(nn.Module):
    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.first, self.second = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Stage(pipelining.PipelineStage):
    """Names what it receives, on the tensor itself: torch 2.15 makes one for each message. And gloo cannot send to itself, which a V schedule
    does once, where NCCL then makes its communicators (up to torch 2.14): two stages on one rank are neighbours."""

    def _get_init_p2p_neighbors_ops(self):
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]

    def get_fwd_recv_ops(self, batch):
        return self._named("F", batch, super().get_fwd_recv_ops(batch))

    def get_bwd_recv_ops(self, batch):
        return self._named("B", batch, super().get_bwd_recv_ops(batch))

    def _named(self, kind, batch, ops):
        for op in ops:
            op.tensor.received_as = f"{kind}{self.stage_index}.{batch}"
        return ops


def stage_indices(plan, place, size):
    if plan["schedule"] in ("ZBVZeroBubble", "DualPipeV"):
        return [place, 2 * size - 1 - place]
    return [place + chunk * size for chunk in range(plan.get("chunks", 1))]


def expected_waits(schedule, place, mine, total):
    """What this rank has to wait for, in order, as its action list says: a compute action whose input is made on another rank."""
    runtime = hasattr(schedule, "pipeline_order_with_comms")
    if not runtime and not hasattr(schedule, "_get_pipeline_order"):
        return []  # up to torch 2.5
    order = schedule.pipeline_order_with_comms[place] if runtime else schedule._get_pipeline_order()[place]
    waits, posted, seen = [], [], {}
    for outer in order:
        for action in (outer.sub_actions or [outer]) if outer is not None else []:
            kind, stage, batch = action.computation_type.name, action.stage_index, action.microbatch_index
            if not runtime:  # 1F1B's list counts the last stage's micro-batches from 1
                batch = seen[kind] = seen.get(kind, -1) + 1
            if kind == "FORWARD" and stage > 0 and stage - 1 not in mine:
                waits.append(f"F{stage}.{batch}")
            if kind in ("FULL_BACKWARD", "BACKWARD_INPUT") and stage < total - 1 and stage + 1 not in mine:
                waits.append(f"B{stage}.{batch}")
            if kind in ("RECV_F", "RECV_B"):
                posted.append(f"{kind[-1]}{stage}.{batch}")
    assert not runtime or sorted(posted) == sorted(waits), "the schedule's receives are not what its computations need"
    return waits


def make_group_anew():
    """The default group, which these stages do not name."""
    store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("anew", store), rank=rank, world_size=size)


def ring(group, rank, size):
    """What a context-parallel attention does: each passes its keys on, and gets its neighbour's."""
    mine, other = torch.full((4,), float(rank)), torch.empty(4)
    members = dist.get_process_group_ranks(group)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, mine, members[(rank + 1) % size], group),
            dist.P2POp(dist.irecv, other, members[(rank - 1) % size], group),
        ]
    )
    for work in works:
        work.wait()
    assert other[0].item() == (rank - 1) % size


def train(plan, pipe, beside, marks):
    place, size = dist.get_rank(pipe), dist.get_world_size(pipe)
    indices = stage_indices(plan, place, size)
    total = size * len(indices)
    parts = [Part(index) for index in indices]
    # Up to torch 2.5 a stage learns no shapes by itself.
    asked = inspect.signature(pipelining.PipelineStage).parameters["input_args"].default is inspect.Parameter.empty
    shape = {"input_args": torch.empty(ROWS, DIM)} if asked else {}
    stages = [
        Stage(part, index, total, torch.device("cpu"), group=pipe, **shape) for part, index in zip(parts, indices)
    ]
    kind = getattr(schedules, "Schedule" + plan["schedule"])
    multi = issubclass(kind, schedules.PipelineScheduleMulti)
    schedule = kind(stages if multi else stages[0], plan["micro_batches"], loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD([value for part in parts for value in part.parameters()], lr=0.05)
    draws = torch.Generator().manual_seed(7)
    per_iteration, seen = [], []
    del marks[:]
    for number in range(plan["iterations"]):
        if number == plan.get("new_group_at"):
            make_group_anew()
        batch = torch.randn(2, plan["micro_batches"] * ROWS, DIM, generator=draws)
        losses = []
        given = {"target": batch[1], "losses": losses} if total - 1 in indices else {}
        schedule.step(*([batch[0]] if 0 in indices else []), **given)
        if beside is not None:  # data and context parallelism beside the pipeline, and a norm over all of it
            for part in parts:
                for value in part.parameters():
                    dist.all_reduce(value.grad, group=beside)
            ring(beside, dist.get_rank(beside), dist.get_world_size(beside))
            norm = torch.stack([value.grad.norm() ** 2 for part in parts for value in part.parameters()]).sum()
            dist.all_reduce(norm, group=pipe)
            for part in parts:
                for value in part.parameters():
                    value.grad *= torch.clamp(10 / norm.sqrt(), max=1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        made = calls.take() if not hooked else None
        per_iteration.append([loss.item().hex() for loss in losses])
        seen.append(marks[:])
        del marks[:]
    result = {
        "losses": per_iteration,
        "expected": expected_waits(schedule, place, indices, total) + (["collective"] if beside is not None else []),
        "marked": [
            [getattr(mark, "received_as", "other") if mark is not None else "collective" for mark in marked]
            for marked in seen
        ],
    }
    if not hooked:
        result["calls"] = made
    else:
        import record

        page = record.page()
        result.update(
            waits=page.waits,
            stage=page.stage,
            stages=page.stages,
            replica=page.replica,
            replicas=page.replicas,
            framework=page.framework.decode(),
        )
    return result


def main():
    plans = json.load(open(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    pipe = beside = None
    for stages in {plan.get("stages", size) for plan in plans} - {size}:
        for first in range(0, size, stages):
            group = dist.new_group(list(range(first, first + stages)))
            pipe = group if first <= rank < first + stages else pipe
        for place in range(stages):
            group = dist.new_group(list(range(place, size, stages)))
            beside = group if rank % stages == place else beside
    marks = []
    if hooked:
        import record

        record.start(marks)
    else:
        calls.start()
    results = []
    for plan in plans:
        results.append(train(plan, pipe, beside, marks))
    if hooked:
        import freeride

        results[-1]["state"] = freeride.state()
    json.dump(results, open(f"{sys.argv[2]}.{rank}", "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
