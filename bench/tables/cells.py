"""What the tables measure: one Cell for each run of a training with side tasks."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Cell:
    side_task: str      # of every stage, or "mixed", or "" for none
    method: str         # "iterative", "imperative", "mps", "naive"; "" for none
    micro_batches: int = 4
    schedule: str = "1F1B"
    budget_pct: float | None = None  # None: slowdown does not throttle side tasks

    @property
    def name(self):
        words = [self.side_task or "none", self.method or "none", f"{self.schedule}x{self.micro_batches}"]
        return "-".join(words + ([f"budget{self.budget_pct:g}"] if self.budget_pct is not None else []))


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large everything is."""
    size: dict           # of the GPT: pipeline.Size
    params: dict         # of side tasks: name to KEY=VALUE words
    mixed: tuple         # the side task of each stage in the mixed set, in turn
    cells: tuple
    seconds: float       # of each run, after warm-up
    warm_up: int         # iterations
    block_iterations: int  # side tasks have every other block of so many
    low_tier: str        # "paper": throughputs from prices.toml; "alone": those measured alone on this machine, where the inputs are other ones


SIDE_TASKS = ("resnet18", "resnet50", "vgg19", "pagerank", "sgd", "image")
ORKUT = ["vertices=3072441", "edges=117185083"]  # SNAP's com-Orkut, as large


def toy():
    """Shows that every part works, on two cores in a few minutes. Its figures mean nothing."""
    params = {"pagerank": ["scale=10", "tolerance=0", "max_iterations=1000000"], "sgd": ["scale=10"], "image": ["synthetic=200", "width=100"]}
    cells = [Cell("pagerank", method) for method in ("iterative", "imperative", "naive")] + [Cell("mixed", "iterative", budget_pct=0.5)]
    return Scale(size={"layers": 4, "width": 128, "heads": 4, "length": 64, "batch": 4, "vocabulary": 256}, params=params, mixed=("pagerank", "image"),
                 cells=tuple(cells), seconds=12, warm_up=8, block_iterations=6, low_tier="alone")


def gpu():
    """The paper's six side tasks and the mixed set beside a GPT of about 1 B parameters a stage."""
    train = ["batch=64", "image=224"]
    params = {"resnet18": train, "resnet50": train, "vgg19": train, "pagerank": ORKUT + ["tolerance=0", "max_iterations=1000000"], "sgd": ORKUT,
              "image": ["synthetic=16384"]}
    every = SIDE_TASKS + ("mixed",)
    cells = [Cell(task, "iterative", budget_pct=0.5) for task in every]
    cells += [Cell(task, "imperative", budget_pct=1.0) for task in every]
    cells += [Cell(task, "iterative") for task in every]
    cells += [Cell(task, method) for method in ("mps", "naive") for task in every]
    cells += [Cell("resnet18", "iterative", micro_batches=8)]
    cells += [Cell("resnet18", "iterative", schedule=schedule) for schedule in ("GPipe", "Interleaved1F1B", "ZBVZeroBubble")]
    return Scale(size={"layers": 8, "width": 3072, "heads": 24, "length": 1024, "batch": 4, "vocabulary": 32000}, params=params,
                 mixed=("pagerank", "resnet18", "image", "vgg19"), cells=tuple(cells), seconds=40, warm_up=25, block_iterations=8, low_tier="paper")


SCALES = {"toy": toy, "gpu": gpu}
