"""A training rank for the GPU test: deterministic, with two bubbles in each iteration that it marks itself, and no
pipeline behind it.

Writes one line per iteration to --log: index, begin and end (CLOCK_MONOTONIC, s), ms of computing, loss, MiB reserved.
Every --cycle iterations it starts again from the same weights, so each loss is known from the first cycle. Takes
commands on stdin: "grow GIB MS" takes that much in steps of 1 GiB, MS apart, by the training thread; "shrink" gives it
back; "stop"."""

import argparse
import ctypes
import os
import select
import sys
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True, help="UUID, or cpu-N for a dry run")
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--bubble-ms", type=float, default=12)
    parser.add_argument("--cycle", type=int, default=20)
    options = parser.parse_args()

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    from freeride import measure

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)
    gpu = torch.cuda.is_available()
    place, width, rows, layers = ("cuda", 4096, 8192, 6) if gpu else ("cpu", 128, 256, 4)
    kind = torch.bfloat16 if gpu else torch.float32
    torch.set_num_threads(1)

    blocks = [torch.nn.Linear(width, width, bias=False, dtype=kind, device=place) for _ in range(layers)]
    model = torch.nn.Sequential(*[part for block in blocks for part in (block, torch.nn.GELU())])
    start = [p.detach().clone() for p in model.parameters()]
    data = torch.randn(rows, width, device=place).to(kind)
    goal = torch.randn(rows, width, device=place).to(kind)

    library = measure.Library()
    config = measure.Config()
    config.struct_size = ctypes.sizeof(config)
    config.job, config.device, config.framework = b"gpu-test", options.device.encode(), b"torch"
    config.run_dir = options.run_dir.encode()
    config.stages = config.replicas = 1
    hook = library.attach(ctypes.byref(config))
    assert hook, "the hook did not attach"

    def synchronize():
        if gpu:
            torch.cuda.synchronize()

    def bubble():
        synchronize()
        library.mark_begin(hook)
        end = time.monotonic() + options.bubble_ms / 1e3
        time.sleep(max(0, end - time.monotonic() - 0.0005))
        while time.monotonic() < end:
            pass
        library.mark_end(hook)

    taken = []
    log = open(options.log, "w", buffering=1)
    index = 0
    while True:
        begin = time.monotonic()
        if index % options.cycle == 0:
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), start):
                    parameter.copy_(value)
        synchronize()
        first = time.monotonic()
        loss = ((model(data) - goal).float() ** 2).mean()
        synchronize()
        middle = time.monotonic()
        bubble()
        second = time.monotonic()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1.0 * parameter.grad
                parameter.grad = None
        synchronize()
        computed = (middle - first) + (time.monotonic() - second)
        bubble()
        library.iteration_end(hook)
        end = time.monotonic()
        memory = torch.cuda.memory_reserved() >> 20 if gpu else 0
        log.write(f"{index} {begin:.6f} {end:.6f} {computed * 1e3:.4f} {float(loss.detach()).hex()} {memory}\n")
        index += 1
        while select.select([sys.stdin], [], [], 0)[0]:
            words = sys.stdin.readline().split()
            if not words or words[0] == "stop":
                library.detach(hook)
                return
            if words[0] == "grow":
                least = 1 << 60
                for _ in range(int(words[1])):
                    taken.append(torch.empty(1 << 30, dtype=torch.uint8, device=place) if gpu else None)
                    least = min(least, torch.cuda.mem_get_info()[0] if gpu else 0)
                    time.sleep(float(words[2]) / 1e3)
                print(f"grown {time.monotonic():.6f} {least >> 20}", flush=True)
            elif words[0] == "shrink":
                taken.clear()
                if gpu:
                    torch.cuda.empty_cache()
                print("shrunk", flush=True)


main()
