"""What the tables measure: a Cell for each figure, and how large everything is at each scale."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cell:
    side_task: str  # of every stage; "a+b": both on every stage; "mixed": the scale's set
    method: str  # "iterative", "imperative", "mps", "naive"
    micro_batches: int = 4
    schedule: str = "1F1B"
    budget_pct: float | str | None = None  # None: slowdown does not throttle side tasks; "auto": by the net saving
    size: str = "middle"  # of the GPT
    batch: int | None = None  # of a side task that trains; None: the scale's
    seconds: float | None = None  # measured; None: the scale's

    @property
    def name(self):
        words = [
            self.side_task + (f"@{self.batch}" if self.batch else ""),
            self.method,
            f"{self.schedule}x{self.micro_batches}",
        ]
        words += [self.size] if self.size != "middle" else []
        return "-".join(words + ([f"budget{self.budget_pct}"] if self.budget_pct is not None else []))

    @property
    def phase(self):
        """Cells of one phase share a training."""
        return self.size, self.schedule, self.micro_batches

    @property
    def key(self):
        """What it is, however long it is measured."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "seconds"}


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large everything is."""

    sizes: dict  # name to pipeline.Size, but for the layers, which are a stage's
    params: dict  # of side tasks: name to KEY=VALUE words
    mixed: tuple  # the side task of each stage in the mixed set, in turn
    cells: tuple  # in the order in which they are measured, but for what shares a training or loaded side tasks
    seconds: float  # of a cell, without what comes before its first block
    ramp: float  # before that where there is a budget: side tasks are at work, and their cost gets known
    warm_up: int  # iterations of a phase
    block_iterations: int  # side tasks have every other block of so many
    low_tier: str  # "paper": throughputs from prices.toml; "alone": those measured alone on this machine, where the inputs are other ones
    memory_mib: int  # that a side task may have while it is profiled


SIDE_TASKS = ("resnet18", "resnet50", "vgg19", "pagerank", "sgd", "image")
TRAIN = ("resnet18", "resnet50", "vgg19")  # with LibTorch
ORKUT = ["vertices=3072441", "edges=117185083"]  # SNAP's com-Orkut, as large


def toy():
    """Shows that every part works, on two cores in a few minutes. Its figures mean nothing."""
    params = {
        "pagerank": ["scale=10", "tolerance=0", "max_iterations=1000000"],
        "sgd": ["scale=10"],
        "image": ["synthetic=200", "width=100"],
    }
    cells = [Cell("pagerank", method) for method in ("iterative", "imperative", "naive")] + [
        Cell("mixed", "iterative", budget_pct=0.5)
    ]
    cells += [
        Cell("pagerank+image", "iterative", budget_pct="auto"),
        Cell("pagerank", "iterative", schedule="GPipe", size="small"),
    ]
    size = {"layers": 2, "width": 128, "heads": 4, "length": 64, "batch": 4, "vocabulary": 256}
    return Scale(
        sizes={"middle": size, "small": dict(size, layers=1)},
        params=params,
        mixed=("pagerank", "image"),
        cells=tuple(cells),
        seconds=6,
        ramp=1,
        warm_up=8,
        block_iterations=4,
        low_tier="alone",
        memory_mib=512,
    )


def gpu():
    """The paper's six side tasks and the mixed set beside a GPT of about 1 B parameters a stage."""
    params = {name: ["batch=64", "image=224"] for name in TRAIN}
    params |= {
        "pagerank": ORKUT + ["tolerance=0", "max_iterations=1000000"],
        "sgd": ORKUT,
        "image": ["synthetic=16384"],
    }
    every = SIDE_TASKS + ("mixed",)
    cells = [Cell(task, "iterative", seconds=15) for task in every]
    # Iterations vary by 0.45 %: a hundred of them, in blocks of three, make an interval of ± 0.2 %.
    cells += [Cell(task, "iterative", budget_pct=0.5, seconds=30) for task in every]
    cells += [Cell(task, "iterative", budget_pct="auto") for task in ("resnet18", "resnet50", "mixed")]
    cells += [
        Cell("resnet18+pagerank", "iterative"),
        Cell("resnet18", "iterative", batch=16),
        Cell("resnet18", "iterative", batch=128),
    ]
    cells += [
        Cell(task, "iterative", budget_pct=budget, seconds=12)
        for task in ("pagerank", "vgg19")
        for budget in (0.25, 1.0)
    ]
    cells += [Cell(task, "imperative", budget_pct=1.0, seconds=12) for task in every]
    cells += [Cell("resnet18", "iterative", micro_batches=8)]
    cells += [Cell("resnet18", "iterative", size=size) for size in ("1.2B", "6B")]
    cells += [
        Cell("resnet18", "iterative", schedule=schedule) for schedule in ("GPipe", "Interleaved1F1B", "ZBVZeroBubble")
    ]
    cells += [Cell(task, method) for method in ("naive", "mps") for task in every]
    size = {"layers": 8, "width": 3072, "heads": 24, "length": 1024, "batch": 4, "vocabulary": 32000}
    sizes = {"middle": size, "1.2B": dict(size, layers=5, width=2048, heads=16), "6B": dict(size, layers=13)}
    return Scale(
        sizes=sizes,
        params=params,
        mixed=("pagerank", "resnet18", "image", "vgg19"),
        cells=tuple(cells),
        seconds=8,
        ramp=8,
        warm_up=12,
        block_iterations=3,
        low_tier="paper",
        memory_mib=24576,
    )


SCALES = {"toy": toy, "gpu": gpu}
