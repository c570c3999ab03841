#!/usr/bin/env python3
"""The LibTorch side tasks beside the same models in Python PyTorch, on one device: blocks of steps in turns, both in
processes of their own that hold their memory throughout.

    bench/trainings.py --plugins DIR --bin DIR --device cuda --out trainings.json      # or --device cpu --batch 2 --image 32
    bench/trainings.py --plugins DIR --bin DIR --yields --out trainings.json           # and once more under the real runner, with yield points (bench-leases)

For each model: milliseconds a step of both, and the ratio of neighbouring blocks with its 95 % interval. On a GPU also
what the driver says that the side task's process holds there once created and once initialised. Needs torch."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
from rig.gpus import query
from rig.processes import flags
from rig.statistics import interval
from rig.tree import folder

MODELS = ["resnet18", "resnet50", "vgg19"]


# ---- the same in Python


def python_model(name, classes):
    from torch import nn

    def conv(i, o, kernel, stride=1, bias=False):
        return nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=bias)

    class Residual(nn.Module):
        def __init__(self, layers, shortcut):
            super().__init__()
            self.layers, self.shortcut = layers, shortcut

        def forward(self, x):
            y = self.layers(x)
            y += self.shortcut(x) if self.shortcut else x
            return y.relu_()

    def residual(i, o, stride, deep):
        shortcut = None if i == o and stride == 1 else nn.Sequential(conv(i, o, 1, stride), nn.BatchNorm2d(o))
        m = o // 4
        layers = (
            [
                conv(i, m, 1),
                nn.BatchNorm2d(m),
                nn.ReLU(True),
                conv(m, m, 3, stride),
                nn.BatchNorm2d(m),
                nn.ReLU(True),
                conv(m, o, 1),
                nn.BatchNorm2d(o),
            ]
            if deep
            else [conv(i, o, 3, stride), nn.BatchNorm2d(o), nn.ReLU(True), conv(o, o, 3), nn.BatchNorm2d(o)]
        )
        return Residual(nn.Sequential(*layers), shortcut)

    if name == "vgg19":
        layers, i = [], 3
        for o, depth in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(depth):
                layers += [conv(i, o, 3, bias=True), nn.ReLU(True)]
                i = o
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(
            *layers,
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(512 * 49, 4096),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )
    deep = name == "resnet50"
    layers, i = [conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)], 64
    for stage, depth in enumerate([3, 4, 6, 3] if deep else [2, 2, 2, 2]):
        for n in range(depth):
            o = (64 << stage) * (4 if deep else 1)
            layers.append(residual(i, o, 2 if n == 0 and stage else 1, deep))
            i = o
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, classes))


def serve_python(name, device, batch, image, classes):
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    model = python_model(name, classes).to(device).train()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.rand(batch, 3, image, image, device=device), torch.randint(classes, (batch,), device=device)
    for line in sys.stdin:
        if not line.strip().isdigit():
            print(0, flush=True)
            continue
        begin = time.perf_counter()
        for _ in range(int(line)):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            loss.item()
            if device != "cpu":
                torch.cuda.synchronize()
        print((time.perf_counter() - begin) * 1e3 / int(line), flush=True)


# ---- both in turns


class Side:
    """A process that answers each line, "create", "init", or how many steps, with milliseconds (a step)."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, order):
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"a side ended: {self.process.wait()}")
        return self.ms_of(answer)

    ms_of = staticmethod(float)

    def on_gpu_mib(self):
        # In a container the driver's process numbers are another's: then the whole list counts, whose owner is known
        # here.
        return [", ".join(row) for row in query("compute-apps=pid,used_memory")]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Plain(Side):
    """The plugin's own functions, one after the other."""

    def __init__(self, options, plugin, device, params):
        words = [word for key, value in params.items() for word in ("--param", f"{key}={value}")]
        super().__init__(
            options.bin / "bench-side-task", "run", "--serve", *flags(plugin=plugin, device=device), *words
        )

    def ask(self, order):
        return super().ask(order if order in ("create", "init") else f"{order} steps")

    @staticmethod
    def ms_of(answer):
        return json.loads(answer)["ms"]


class Runner(Side):
    """The side task under supervisor and runner, in a long lease for each block."""

    def __init__(self, options, plugin, device, params):
        words = [f"{key}={value}" for key, value in params.items()]
        super().__init__(
            options.bin / "bench-leases", options.bin / "freeride-runner", plugin, device, "serve", 0, *words
        )
        self.step_ms = 0.0

    def ask(self, order):
        if order == "create":
            return 0.0
        if order == "init":
            began = time.perf_counter()
            if self.process.stdout.readline().strip() != "ready":
                sys.exit(f"the side task did not start: {self.process.wait()}")
            return (time.perf_counter() - began) * 1e3  # with CreateSideTask, and a warm-up
        while not self.step_ms:
            self.step_ms = super().ask(2000)
        self.step_ms = super().ask(round((int(order) + 1) * self.step_ms)) or self.step_ms
        return self.step_ms


def compare(name, options, yields):
    gpu = options.device != "cpu"
    device = "GPU-0" if gpu else "cpu-0"
    params = {
        "batch": options.batch,
        "image": options.image,
        "classes": options.classes,
        **({} if yields else {"piece_ms": 0}),
    }
    ours = (Runner if yields else Plain)(options, options.plugins / f"{name}.so", device, params)
    row = {"side_task": name, "batch": options.batch, "image": options.image, "yield": yields}
    row["create_ms"] = ours.ask("create")
    row["on_gpu_created"] = ours.on_gpu_mib() if gpu else None
    row["init_ms"] = ours.ask("init")
    ours.ask(options.block)
    row["on_gpu_running"] = ours.on_gpu_mib() if gpu else None
    theirs = Side(
        sys.executable, __file__, "--serve-python", name, options.device, options.batch, options.image, options.classes
    )
    theirs.ask(options.block)
    ours.ask(options.block), theirs.ask(options.block)
    pairs = []
    for i in range(options.pairs):
        first, second = (ours, theirs) if i % 2 else (theirs, ours)
        a, b = first.ask(options.block), second.ask(options.block)
        pairs.append((a, b) if i % 2 else (b, a))
    ours.end(), theirs.end()
    ratios = [100 * (a / b - 1) for a, b in pairs]
    slower, half = interval(ratios)
    row.update(
        step_ms=statistics.median(a for a, _ in pairs),
        pytorch_step_ms=statistics.median(b for _, b in pairs),
        slower_pct=slower,
        slower_ci95_pct=half,
        pairs=pairs,
    )
    return row


def main():
    if sys.argv[1:2] == ["--serve-python"]:
        return serve_python(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugins", required=True, type=folder)
    parser.add_argument("--bin", required=True, type=folder, help="folder with bench-side-task")
    parser.add_argument(
        "--yields", action="store_true", help="measure yield points, too: with bench-leases and freeride-runner"
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--block", type=int, default=20, help="steps")
    parser.add_argument("--pairs", type=int, default=12, help="of blocks")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    print(
        f"{'side task':<10} {'yield':>5} {'ms a step':>10} {'PyTorch':>8} {'slower by %':>14}  on the GPU when created, running (MiB)"
    )
    for name in options.models.split(","):
        for yields in (False, True) if options.yields else (False,):
            row = compare(name, options, yields)
            rows.append(row)
            print(
                f"{name:<10} {row['yield']:>5} {row['step_ms']:>10.2f} {row['pytorch_step_ms']:>8.2f} {row['slower_pct']:>+7.2f} ± {row['slower_ci95_pct']:.2f}"
                f"  {row['on_gpu_created']} {row['on_gpu_running']}",
                flush=True,
            )
            if options.out:
                options.out.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
