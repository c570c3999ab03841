"""One rank of a real Megatron-Core pipeline: its schedules, its point-to-point calls and its norm of the gradients, with a tiny model, over NCCL or,
without a GPU, over gloo.

    train_megatron.py PLAN OUT     with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; OUT.RANK gets what happened, as JSON

The plan is a list: {"chunks": 1 or more, "overlap": are messages overlapped with computing?, "batched": are they posted in batches?}.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import nccl_waits

LENGTH, ROWS = 256, 2
hooked = "freeride" in sys.modules
gpu = torch.cuda.is_available()


class Part(nn.Module):
    """Layers of a virtual stage; the first one has its own input, as Megatron's models do."""

    def __init__(self, config, index, vp_stage):
        super().__init__()
        torch.manual_seed(index)
        from megatron.core.enums import ModelType

        self.config, self.first, self.vp_stage, self.given, self.model_type = (
            config,
            index == 0,
            vp_stage,
            None,
            ModelType.encoder_or_decoder,
        )
        width = config.hidden_size
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def set_input_tensor(self, tensor):
        self.given = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self, x):
        x = x if self.first else self.given
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def train(plan):
    from megatron.core import parallel_state
    from megatron.core.optimizer.clip_grads import get_grad_norm_fp32
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig

    size, chunks, micro_batches = dist.get_world_size(), plan["chunks"], plan["micro_batches"]
    virtual = chunks if chunks > 1 else None
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=size, virtual_pipeline_model_parallel_size=virtual
    )
    config = TransformerConfig(
        num_layers=4 * size * chunks,
        hidden_size=plan.get("width", 64),
        num_attention_heads=4,
        pipeline_model_parallel_size=size,
        virtual_pipeline_model_parallel_size=virtual,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=plan["batched"],
        overlap_p2p_comm=plan["overlap"],
        batch_p2p_sync=False,
        deallocate_pipeline_outputs=gpu,
    )
    stage = parallel_state.get_pipeline_model_parallel_rank()
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    parts = [Part(config, stage + chunk * size, chunk if virtual else None).to(device) for chunk in range(chunks)]
    optimizer = torch.optim.SGD([value for part in parts for value in part.parameters()], lr=0.01)
    draws = torch.Generator().manual_seed(7)

    def batches():
        while True:
            yield torch.randn(LENGTH, ROWS, config.hidden_size, generator=draws).to(device)

    def forward_step(data, model, *_):
        batch = next(data)
        output = model(batch)
        return output, lambda out: ((out - batch).square().mean(), {"loss": (out - batch).square().mean().detach()})

    schedule = get_forward_backward_func()
    data = [batches() for _ in parts]
    losses, seen = [], []
    nccl_waits.take()
    for _ in range(plan["iterations"]):
        reduced = schedule(
            forward_step_func=forward_step,
            data_iterator=data if virtual else data[0],
            model=parts if virtual else parts[0],
            num_microbatches=micro_batches,
            seq_length=LENGTH,
            micro_batch_size=ROWS,
            forward_only=False,
        )
        grads = [value.grad for part in parts for value in part.parameters()]
        norm = get_grad_norm_fp32(grads, grad_stats_parallel_group=parallel_state.get_model_parallel_group())
        for grad in grads:
            grad.mul_(min(1.0, 1.0 / (float(norm) + 1e-6)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append([float(one["loss"]).hex() for one in reduced])
        if hooked:
            nccl_waits.listen()
        seen.append(nccl_waits.take())
    result = {"losses": losses, "waits": [one[0] for one in seen], "marks": [one[1] for one in seen], "stage": stage}
    if hooked:
        import freeride
        import record
        from freeride._hook import hook

        result.update(state=freeride.state(), counters=hook.counters(), page_waits=record.page().waits)
        result["remote"] = hook.remote_report()
    return result


def main():
    plans = json.load(open(sys.argv[1]))
    torch.set_num_threads(1)
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.use_deterministic_algorithms(True)
    else:
        pretend()
    nccl_waits.start()
    dist.init_process_group("nccl" if gpu else "gloo")
    results = []
    for plan in plans:
        results.append(train(plan))
        print(
            dist.get_rank(),
            plan,
            {key: value for key, value in results[-1].items() if key in ("state", "counters", "remote")},
            flush=True,
        )
        json.dump(results, open(f"{sys.argv[2]}.{dist.get_rank()}", "w"))
    dist.barrier()
    dist.destroy_process_group()


def pretend():
    """Without a GPU: what Megatron's schedules allocate there comes to lie on the CPU. Nothing else of Megatron is touched."""
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    for name in ("zeros", "tensor", "empty", "ones"):
        original = getattr(torch, name)
        setattr(
            torch,
            name,
            lambda *args, original=original, **kwargs: original(
                *args, **{key: "cpu" if key == "device" and value == "cuda" else value for key, value in kwargs.items()}
            ),
        )


if __name__ == "__main__":
    main()
