"""A GPT in torch.distributed.pipelining stages, for the hook's measurements and checks on GPUs: what both share."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules


class Copied(torch.autograd.Function):
    """What all ranks of a split layer compute with: the same forward, the sum of their gradients backward. With
    Summed, the two operators of Megatron-LM's tensor parallelism (Shoeybi et al., 2019)."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Summed(torch.autograd.Function):
    """The sum of what the ranks of a split layer have computed."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Block(nn.Module):
    """tensor: the ranks that share the block, each with its part of the heads and of the inner features."""

    def __init__(self, width, heads, tensor=None):
        super().__init__()
        self.tensor, parts = tensor, 1 if tensor is None else tensor.size()
        self.heads, part = heads // parts, width // parts
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * part), nn.Linear(part, width)
        self.up, self.down = nn.Linear(width, 4 * part), nn.Linear(4 * part, width)

    def copied(self, x):
        return x if self.tensor is None else Copied.apply(x, self.tensor)

    def summed(self, x):
        return x if self.tensor is None else Summed.apply(x, self.tensor)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.copied(self.before(x))).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.summed(self.out(attended.transpose(1, 2).reshape(batch, length, -1)))
        return x + self.summed(self.down(nn.functional.gelu(self.up(self.copied(self.after(x))))))


class Chunk(nn.Module):
    """Layers of one stage; the first embeds, the last predicts."""

    def __init__(self, size, first, last, tensor=None):
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width) if first else None
        self.blocks = nn.ModuleList(Block(size.width, size.heads, tensor) for _ in range(size.layers // size.stages))
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


def groups_of(stages, other="data"):
    """Of a world with more ranks than stages: this rank's pipeline, and the ranks of its stage in all of them, which
    have the same part of the model ("data": pipelines one behind the other) or share it ("tensor": side by side, as
    Megatron-LM places them). None, None where there is one pipeline."""
    mine, world = dist.get_rank(), dist.get_world_size()
    if stages == world:
        return None, None
    apart = world // stages if other == "tensor" else 1
    firsts = range(apart) if other == "tensor" else range(0, world, stages)
    pipelines = [range(first, first + stages * apart, apart) for first in firsts]
    pipe = beside = None
    for ranks in pipelines:
        group = dist.new_group(list(ranks))
        pipe = group if mine in ranks else pipe
    for ranks in zip(*pipelines):
        group = dist.new_group(list(ranks))
        beside = group if mine in ranks else beside
    return pipe, beside


def loss_of(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1).float(), target.flatten())


class Training:
    """One rank's stages under `schedule`; step() is one iteration."""

    def __init__(
        self, schedule, size, device, seed=1, dtype=torch.bfloat16, group=None, beside=None, norm=False, other="data"
    ):
        """group, beside: groups_of(stages, other); of "data", the ranks beside each other share their gradients, of
        "tensor" their layers. norm: gradients are clipped by their norm over all stages, as Megatron does."""
        tensor = beside if other == "tensor" else None
        beside = None if other == "tensor" else beside
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
                self.chunks.append(Chunk(size, index == 0, index == size.stages - 1, tensor).to(dtype))
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
