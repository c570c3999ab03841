"""A plugin of pytest: what Megatron's tests and schedules allocate on the GPU comes to lie on the CPU, and gloo carries what NCCL would. So
their messages are real ones. A test that asks whether there is a GPU is told no."""

import functools

import torch
import torch.distributed as dist


def _on_cpu(original):
    @functools.wraps(original)
    def call(*args, **kwargs):
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return original(*args, **kwargs)

    return call


def _over_gloo(original):
    @functools.wraps(original)
    def call(*args, **kwargs):
        if kwargs.get("backend") == "nccl":
            kwargs["backend"] = "gloo"
        kwargs.pop("pg_options", None)  # are NCCL's
        return original(*args, **kwargs)

    return call


torch.cuda.current_device = lambda: "cpu"
torch.cuda.device_count = lambda: 8
torch.cuda.set_device = torch.cuda.synchronize = lambda *_: None
torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self
for name in ("zeros", "ones", "empty", "tensor", "rand", "randn"):
    setattr(torch, name, _on_cpu(getattr(torch, name)))
for name in ("init_process_group", "new_group", "new_subgroups_by_enumeration"):
    setattr(dist, name, _over_gloo(getattr(dist, name)))
