"""Takes a process with a PyTorch model off its GPU and puts it back by the driver's checkpoints, as whole processes are handed a GPU
over in turns. Prints the medians as JSON."""

import ctypes
import json
import statistics
import subprocess
import sys
import time

TIMES = 5
CHILD = """
import torch, torchvision, sys
model = torchvision.models.resnet18().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(64, 3, 224, 224, device="cuda")
def step():
    optimizer.zero_grad(); model(batch).square().mean().backward(); optimizer.step(); torch.cuda.synchronize()
for _ in range(5): step()
for line in sys.stdin:
    print("ready", flush=True)
    step()
"""
PLAIN = CHILD.replace("import torch, torchvision, sys", "import torch, sys").replace(
    "torchvision.models.resnet18().cuda()",
    "torch.nn.Sequential(*[torch.nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1) for i in range(18)]).cuda()",
)


def main():
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, pid):
        arguments = (ctypes.c_uint64 * 8)()
        code = getattr(driver, name)(pid, ctypes.byref(arguments))
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    driver.cuInit(0)
    try:
        import torchvision  # noqa: F401

        source = CHILD
    except ImportError:
        source = PLAIN
    child = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    off, on = [], []
    for _ in range(TIMES):
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
        time.sleep(0.5)
        begin = time.monotonic()
        call("cuCheckpointProcessLock", child.pid)
        call("cuCheckpointProcessCheckpoint", child.pid)
        off.append(time.monotonic() - begin)
        begin = time.monotonic()
        call("cuCheckpointProcessRestore", child.pid)
        call("cuCheckpointProcessUnlock", child.pid)
        on.append(time.monotonic() - begin)
    child.stdin.close()
    child.wait(30)
    what = "ResNet18" if source is CHILD else "18 convolutions"
    print(json.dumps({"model": what, "times": TIMES, "off_s": statistics.median(off), "on_s": statistics.median(on)}))


if __name__ == "__main__":
    main()
