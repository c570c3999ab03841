"""The CUDA side tasks on a real GPU: right results, and what the driver says of CREATED and PAUSED.

    python3 cuda_tasks.py --driver bench-side-task --plugins DIR --out FILE [--scale N] [--gpu N] [--dry-run]

Runs each plugin with backend=cuda and with backend=cpu and compares: PageRank's ranks to 1e-6, the pictures to the
byte, and SGD's error, which has to fall as far. Then holds each in its states and asks the driver: no memory in
CREATED, no execution in PAUSED, none in STOPPED. Then the shares of the memory bandwidth. Prints a table last; exit
code 1 if something is not as it must be. --dry-run: on a CPU, against itself."""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import zlib

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # in a packed tree rig lies beside this file
from rig import gpus

ORKUT = ["vertices=3072441", "edges=117185083"]
problems, facts = [], {}
gpu = 0


def query(what):
    return gpus.query(what, "-i", gpu)


def check(good, what):
    print(("ok    " if good else "WRONG ") + what, flush=True)
    if not good:
        problems.append(what)


class Bench:
    def __init__(self, options):
        self.options = options
        self.device = "cpu-0" if options.dry_run else query("gpu=uuid")[0][0]
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="side-tasks-"))
        self.made = 0

    def words(self, plugin, backend, params, *more):
        self.made += 1
        scratch = self.root / f"{plugin}-{backend}-{self.made}"
        scratch.mkdir()
        if self.options.dry_run:
            backend = "cpu"
        flags = [word for param in [f"backend={backend}", *params] for word in ("--param", param)]
        return scratch, [
            self.options.driver,
            "run",
            "--plugin",
            str(pathlib.Path(self.options.plugins) / f"{plugin}.so"),
            "--device",
            self.device,
            "--scratch",
            str(scratch),
            *more,
            *flags,
        ]

    def run(self, plugin, backend, params, steps=0):
        scratch, words = self.words(plugin, backend, params, "--steps", str(steps))
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            check(False, f"{plugin} {backend} {params}: {done.stderr.strip()[-300:]}")
            return scratch, None
        return scratch, json.loads(done.stdout.splitlines()[-1])

    def states(self, plugin, params):
        """What the driver says while the task rests in each state."""
        _, words = self.words(plugin, "cuda", params, "--hold", "--steps", "50")
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        seen = {}
        for line in process.stdout:
            state = json.loads(line).get("state")
            if state is None:
                break
            if not self.options.dry_run:
                time.sleep(0.2)
                listed = query("compute-apps=pid,used_memory")
                mine = sum(int(memory) for pid, memory in listed if int(pid) == process.pid and memory.isdigit())
                present = any(int(pid) == process.pid for pid, _ in listed)
                busy = []
                if state.startswith("PAUSED"):
                    time.sleep(1.2)  # the driver's figure is of the last second
                    for _ in range(3):
                        busy.append(int(query("gpu=utilization.gpu")[0][0]))
                        time.sleep(0.2)
                total = int(query("gpu=memory.used")[0][0])
                seen[state] = {"listed": present, "mib": mine, "gpu_used_mib": total, "utilisation_pct": busy}
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait(60)
        return seen


def ranks(scratch):
    rows = {}
    for line in (scratch / "ranks.txt").read_text().splitlines():
        if not line.startswith("#"):
            vertex, rank = line.split()
            rows[int(vertex)] = float(rank)
    return rows


def pagerank(bench, name, params):
    made = [
        ranks(bench.run("pagerank", backend, ["repeat=0", "top=100000000", "step_ms=2", *params])[0])
        for backend in ("cuda", "cpu")
    ]
    worst = max(abs(made[0][v] / made[1][v] - 1) for v in made[1]) if made[0].keys() == made[1].keys() else float("inf")
    check(
        worst < 1e-6,
        f"pagerank, {name}: {len(made[1])} ranks, the worst differs by {worst:.1e}, their sum is {sum(made[0].values()):.12f}",
    )
    facts[f"pagerank {name} worst"] = worst


def sgd(bench, name, params):
    made = [bench.run("sgd", backend, ["sweeps=20", "step_ms=2", *params])[1] for backend in ("cuda", "cpu")]
    first = bench.run("sgd", "cuda", ["sweeps=1", "step_ms=2", *params])[1]
    if None in (*made, first):
        return
    error = [one["metrics"]["rmse"] for one in (first, *made)]
    check(
        error[1] < 0.7 * error[0] and error[1] < 1.25 * error[2],
        f"sgd, {name}: error {error[0]:.4f} after one sweep, {error[1]:.4f} after 20 (CPU: {error[2]:.4f})",
    )
    facts[f"sgd {name} rmse"] = error


def image(bench, name, params):
    folders = [
        bench.run("image", backend, ["repeat=0", "format=png", *params])[0] / "out" for backend in ("cuda", "cpu")
    ]
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    different = [one for one in files[1] if files[0].get(one) != files[1][one]]
    check(
        not different and files[0].keys() == files[1].keys() and files[1],
        f"image, {name}: {len(files[1])} files, {len(different)} differ",
    )


def write_png_with_alpha(path, width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(
        b"\0" + bytes((x * y + c * 85 + x * c) % 256 for x in range(width) for c in range(4)) for y in range(height)
    )
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def bandwidth(bench):
    """Bytes that a step must move, over its time, over what a copy on this GPU reaches."""
    import torch

    block = torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    for _ in range(3):
        other.copy_(block)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(20):
        other.copy_(block)
    torch.cuda.synchronize()
    copy = 20 * 2 * block.numel() / (time.perf_counter() - begin)
    del block, other
    torch.cuda.empty_cache()
    facts["copy_gb_per_s"] = copy / 1e9
    vertices, edges = 3072441, 117185083
    # An edge: its source (4) and that one's share as a double (8); stored as a float it has four less. A vertex: row
    # begin, share, place, rank, sum, degree, as they are read and written.
    work = {
        "pagerank": (
            "iterations",
            ["tolerance=0", "max_iterations=1000000", "top=1"],
            edges * 12 + vertices * (8 + 8 + 16 + 16 + 4),
            3000,
        ),
        # A rating: edge (8), rating (4), two rows of 16 factors read and written.
        "sgd": ("megaedges", [], 1e6 * (12 + 4 * 16 * 4), 1000),
    }
    for plugin, (metric, params, bytes_each, steps) in work.items():
        for wait in ("spin", "block"):
            _, result = bench.run(plugin, "cuda", [*ORKUT, *params, f"host_wait={wait}"], steps)
            if result is None:
                continue
            rate = result["metrics"].get(metric, 0) / result["work_ms"] * 1e3
            share = rate * bytes_each / copy
            facts[f"{plugin} {wait}"] = {
                "per_s": rate,
                "bound_per_s": copy / bytes_each,
                "times_bound": 1 / share if share else None,
                "init_ms": result["init_ms"],
                "step_p50_ms": result["step_p50_ms"],
                "step_p99_ms": result["step_p99_ms"],
            }
            check(
                share > 1 / 1.5,
                f"{plugin}, Orkut-sized, {wait}: {rate:.1f} {metric}/s, {1 / share if share else 0:.2f} x the bound of a copy's {copy / 1e9:.0f} GB/s, "
                f"step p50 {result['step_p50_ms']:.3f} p99 {result['step_p99_ms']:.3f} ms, init {result['init_ms']:.0f} ms",
            )
    for wait in ("spin", "block"):
        _, result = bench.run("image", "cuda", ["synthetic=16384", f"host_wait={wait}"], 2000)
        if result is not None:
            rate = result["metrics"]["images"] / result["work_ms"] * 1e3
            facts[f"image {wait}"] = {
                "per_s": rate,
                "step_p50_ms": result["step_p50_ms"],
                "read_gb_per_s": rate * 16384 * 16384 * 3 / 1e9,
            }
            print(
                f"      image, 16384 x 16384, {wait}: {rate:.0f} images/s, step p50 {result['step_p50_ms']:.3f} ms",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--plugins", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--scale", type=int, default=18, help="of the graphs that are compared")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument(
        "--gpu",
        type=int,
        default=0,
        help="number; on another one than the first, CUDA_VISIBLE_DEVICES has to name it, too",
    )
    options = parser.parse_args()
    global gpu
    gpu = options.gpu
    bench = Bench(options)
    scale = f"scale={options.scale}"
    files = bench.root / "files"
    files.mkdir()
    (files / "graph.txt").write_text("".join(f"{i} {i * 7 % 501}\n{i} {i * i % 977}\n" for i in range(1, 2000)))
    (files / "ratings.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n60 90 5400\n"
        + "".join(f"{i} {j} {0.5 + i * j / 3000}\n" for i in range(1, 61) for j in range(1, 91))
    )
    pagerank(bench, "R-MAT", [scale])
    pagerank(bench, "R-MAT with an odd number of vertices", ["vertices=100003", "edges=1500001", "seed=3"])
    pagerank(bench, "tiny R-MAT", ["scale=1", "edge_factor=3"])
    pagerank(bench, "a file", [f"input={files}/graph.txt"])
    sgd(bench, "R-MAT", [scale])
    sgd(bench, "64 factors", ["scale=12", "edge_factor=64", "factors=64"])
    sgd(bench, "a file", [f"input={files}/ratings.mtx", "factors=8"])
    image(bench, "test pictures, shrunk", [])
    image(bench, "grown", ["width=1700"])
    image(bench, "to a column", ["width=1", "height=700", "filter=box"])
    image(bench, "odd", ["width=333", "height=1801", "filter=bilinear", "opacity=0.3"])
    (files / "alpha").mkdir()
    write_png_with_alpha(files / "alpha/a.png", 301, 203)
    image(bench, "with alpha, shrunk", [f"input={files}/alpha", "width=100"])
    image(bench, "with alpha, grown", [f"input={files}/alpha", "width=777"])
    for plugin, params in (("pagerank", [scale]), ("sgd", [scale]), ("image", ["synthetic=4096"])):
        seen = bench.states(plugin, params)
        facts[f"{plugin} states"] = seen
        if not options.dry_run:
            check(not seen["CREATED"]["listed"], f"{plugin}: CREATED is not on the GPU: {seen['CREATED']}")
            check(
                seen["PAUSED"]["listed"] or seen["PAUSED"]["gpu_used_mib"] > seen["CREATED"]["gpu_used_mib"],
                f"{plugin}: PAUSED holds memory: {seen['PAUSED']}",
            )
            check(
                max(seen["PAUSED"]["utilisation_pct"] + seen["PAUSED AGAIN"]["utilisation_pct"]) == 0,
                f"{plugin}: PAUSED executes nothing: {seen['PAUSED AGAIN']}",
            )
    if not options.dry_run:
        bandwidth(bench)
    pathlib.Path(options.out).write_text(json.dumps({"facts": facts, "problems": problems}, indent=1))
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
