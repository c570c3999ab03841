"""One rank of a real DeepSpeed PipelineEngine training, with a tiny model, over gloo or, where the plan says so ("backend"), over NCCL.

train_deepspeed.py PLAN OUT     with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; OUT.RANK gets what happened, as JSON
"""

import json
import os
import sys

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe import schedule
from torch import nn

import calls
import nccl_waits

DIM, ROWS = 8, 2
hooked = "freeride" in sys.modules


class Part(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


def expected_waits(engine, micro_batches):
    """One wait for each RecvActivation and RecvGrad of DeepSpeed's own schedule; then the norm of all stages' gradients and, for all but the
    last stage, which has it, the loss."""
    steps = schedule.TrainSchedule(
        micro_batches=micro_batches, stages=engine.num_stages, stage_id=engine.stage_id
    ).steps()
    receives = [
        command
        for step in steps
        for command in step
        if isinstance(command, (schedule.RecvActivation, schedule.RecvGrad))
    ]
    return ["receive"] * len(receives) + ["collective"] * (1 if engine.stage_id == engine.num_stages - 1 else 2)


def main():
    plan = json.load(open(sys.argv[1]))
    torch.set_num_threads(1)
    # An all-reduce for inference, which would be compiled now, for a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    gpu = plan.get("backend") == "nccl"
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.use_deterministic_algorithms(True)
        nccl_waits.start()
    deepspeed.init_distributed("nccl" if gpu else "gloo")
    dim = plan.get("width", DIM)
    rank, micro_batches = torch.distributed.get_rank(), plan["micro_batches"]
    torch.manual_seed(3)
    model = PipelineModule(
        layers=[Part(dim) for _ in range(plan["stages"] * 2)],
        num_stages=plan["stages"],
        loss_fn=nn.functional.mse_loss,
        partition_method="uniform",
        activation_checkpoint_interval=0,
    )
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    draws = torch.Generator().manual_seed(11 + engine.grid.get_data_parallel_id())

    def batches():
        while True:
            yield torch.randn(ROWS, dim, generator=draws), torch.randn(ROWS, dim, generator=draws)

    marks = []
    if gpu:
        nccl_waits.take()
    elif hooked:
        import record

        record.start(marks)
    else:
        calls.start()
    data, losses, seen = batches(), [], []
    for _ in range(plan["iterations"]):
        losses.append(engine.train_batch(data_iter=data).item().hex())
        if gpu:
            if hooked:
                nccl_waits.listen()
            marks.append(nccl_waits.take())
        made = calls.take() if not hooked and not gpu else None
        seen.append(marks[:])
        del marks[:]
    if gpu:
        finish_on_gpu(sys.argv[2], rank, losses, seen, expected_waits(engine, micro_batches))
    result = {
        "losses": losses,
        "expected": expected_waits(engine, micro_batches),
        "place": [engine.stage_id, engine.grid.get_data_parallel_id()],
        "marked": [["receive" if mark is not None else "collective" for mark in marked] for marked in seen],
    }
    if not hooked:
        result["calls"] = made
    else:
        import freeride

        page = record.page()
        result.update(
            waits=page.waits,
            iterations=page.iteration,
            stage=page.stage,
            stages=page.stages,
            replica=page.replica,
            replicas=page.replicas,
            framework=page.framework.decode(),
            state=freeride.state(),
        )
    json.dump(result, open(f"{sys.argv[2]}.{rank}", "w"))
    torch.distributed.barrier()
    os._exit(0)  # DeepSpeed leaves threads that make a clean end take long


def finish_on_gpu(out, rank, losses, seen, expected):
    iterations = [of_iteration[0] for of_iteration in seen]
    result = {
        "losses": losses,
        "waits": [one[0] for one in iterations],
        "marks": [one[1] for one in iterations],
        "receives": expected.count("receive"),
    }
    if hooked:
        import freeride
        from freeride._hook import hook

        result.update(state=freeride.state(), counters=hook.counters(), remote=hook.remote_report())
    json.dump([result], open(f"{out}.{rank}", "w"))
    torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
