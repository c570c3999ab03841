"""A training whose host needs as long as one likes to post its work: for what waits cost where the host is hardly ahead of its GPU."""

import statistics
import time

import torch


def slow_host(blocks, ratio, shape, dtype, device):
    """From now on posting one of `blocks` takes the host at least `ratio` times what the block takes the GPU, forward and backward.
    Returns those two times, ms: medians of ten."""
    x = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    forward, backward = [], []
    for _ in range(13):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)  # all is posted before any of it executes
        marks[0].record()
        y = blocks[0](x)
        marks[1].record()
        y.backward(x.detach())
        marks[2].record()
        torch.cuda.synchronize()
        forward.append(marks[0].elapsed_time(marks[1]))
        backward.append(marks[1].elapsed_time(marks[2]))
    for value in blocks[0].parameters():
        value.grad = None
    times = [statistics.median(of[3:]) for of in (forward, backward)]
    began = {}

    def begin(what):
        def hook(module, *_):
            began[what, id(module)] = time.monotonic()

        return hook

    def end(what, least_s):
        def hook(module, *_):
            until = began.pop((what, id(module)), 0) + least_s
            while time.monotonic() < until:
                pass

        return hook

    for block in blocks:
        block.register_forward_pre_hook(begin("forward"))
        block.register_forward_hook(end("forward", ratio * times[0] / 1e3))
        block.register_full_backward_pre_hook(begin("backward"))
        block.register_full_backward_hook(end("backward", ratio * times[1] / 1e3))
    return times
