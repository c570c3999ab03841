"""A GPT in torch.distributed.pipelining stages, for the hook's measurements and checks on GPUs: what both share."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        x = x + self.out(
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        )
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


class Chunk(nn.Module):
    """Layers of one stage; the first embeds, the last predicts."""

    def __init__(self, size, first, last):
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width) if first else None
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers // size.stages))
        self.head = nn.Linear(size.width, size.vocabulary, bias=False) if last else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


class Size:
    def __init__(self, layers, width, heads, length, batch, micro_batches, vocabulary, stages):
        self.layers, self.width, self.heads, self.length = layers, width, heads, length
        self.batch, self.micro_batches, self.vocabulary, self.stages = batch, micro_batches, vocabulary, stages


def loss_of(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1).float(), target.flatten())


class Training:
    """One rank's stages under `schedule`; step() is one iteration."""

    def __init__(self, schedule, size, device, seed=1, dtype=torch.bfloat16, group=None, beside=None, norm=False):
        """group: this rank's pipeline, the world if None; beside: the same stages' ranks of all pipelines, which share
        their gradients; norm: gradients are clipped by their norm over all stages, as Megatron does."""
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        self.group, self.beside, self.norm = group, beside, norm
        kind = getattr(schedules, "Schedule" + schedule)
        per_rank = size.stages // ranks
        mine = [rank + ranks * i for i in range(per_rank)]
        if "ZBV" in schedule or schedule == "DualPipeV":
            mine = [rank, size.stages - 1 - rank]
        torch.manual_seed(seed)
        self.chunks = []
        for index in mine:
            torch.manual_seed(seed + index)
            with device:
                self.chunks.append(Chunk(size, index == 0, index == size.stages - 1).to(dtype))
        stages = [
            PipelineStage(chunk, index, size.stages, device, group=group) for chunk, index in zip(self.chunks, mine)
        ]
        whole = not issubclass(kind, schedules.PipelineScheduleMulti)
        self.mine, self.place = mine, rank
        self.schedule = kind(stages[0] if whole else stages, n_microbatches=size.micro_batches, loss_fn=loss_of)
        self.optimizer = torch.optim.AdamW(
            [p for chunk in self.chunks for p in chunk.parameters()], lr=1e-4, fused=True
        )
        self.first, self.last = 0 in mine, size.stages - 1 in mine
        generator = torch.Generator(device="cpu").manual_seed(seed)
        tokens = torch.randint(
            0, size.vocabulary, (size.batch * size.micro_batches, size.length + 1), generator=generator
        ).to(device)
        self.tokens, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step(self):
        """Returns the micro-batches' losses, tensors, on the last stage's rank."""
        losses = []
        more = {"target": self.targets, "losses": losses} if self.last else {}
        self.schedule.step(*((self.tokens,) if self.first else ()), **more)
        for chunk in self.chunks if self.beside is not None else ():
            for value in chunk.parameters():
                dist.all_reduce(value.grad, group=self.beside)
        if self.norm:
            grads = [value.grad for chunk in self.chunks for value in chunk.parameters()]
            square = torch.stack([grad.float().norm() for grad in grads]).square().sum()
            dist.all_reduce(square, group=self.group)
            for grad in grads:
                grad.mul_(torch.clamp(1 / (square.sqrt() + 1e-6), max=1).to(grad.dtype))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses
