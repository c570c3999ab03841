#!/usr/bin/env python3
"""Makes the page of tables, its pictures, and a page of details from a recorded file.

bench/tables/page.py bench/results/tables-h200.json docs/results.md bench/tables/details.md      # and docs/results-*.png
"""

import json
import pathlib
import sys
import textwrap

import cells
import pictures
import rows as rows_of
from labels import GLANCE, METHODS, budget_name, counts_work, glance, label, phases, plain, task_name

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
LATER = {
    "holds-planned-h200": "a pipeline of four stages",
    "parallel-data-h200": "data parallelism, two pipelines of two stages",
    "parallel-tensor-h200": "tensor parallelism, two stages of two GPUs",
}


def number(value, digits=2, sign=False):
    return "–" if value is None else f"{value:{'+' if sign else ''}.{digits}f}"


def increase(row, of=""):
    if row.get(f"{of}time_increase_pct") is None:
        return "–"
    low, high = row[f"{of}time_increase_ci95_pct"]
    return f"{row[f'{of}time_increase_pct']:+.2f} ± {(high - low) / 2:.2f}"


def savings(row, digits=2):
    return number(row["cost_savings_pct"] if counts_work(row) else None, digits)


def markdown(head, lines):
    """A table under `head`, "one | another"; nothing where it has no lines."""
    rule = "---|" * (head.count(" | ") + 1)
    return "\n".join([f"| {head} |", f"|{rule}", *(f"| {' | '.join(line)} |" for line in lines)]) if lines else ""


def versions_of(record):
    """Which commits the rows are of: those with FreeRide, and those without."""
    commits = {True: {}, False: {}}
    for run in record["runs"]:
        with_freeride = run["cell"]["method"] in ("iterative", "imperative")
        commits[with_freeride][run.get("commit") or record["commit"]] = None
    ours, others = (list(commits[kind]) for kind in (True, False))
    if len(ours) == 1:
        said = f"**All rows with FreeRide are of one version** (commit {ours[0]})."
    else:
        said = f"**The rows with FreeRide are of {len(ours)} versions** (commits {', '.join(ours)})."
        if record.get("between_versions"):
            said += " " + record["between_versions"]
    if set(others) - set(ours):
        said += (
            f" The rows of MPS and naive are of commits {', '.join(others)}. The only part of FreeRide that executes in "
            "these rows is the side task's own program, which is of the row's commit."
        )
    return said if ours else ""


def imperative_range(rows, others=()):
    """What the rows of the imperative interface come to, and what other runs of theirs did."""
    of = [row for row in rows if row["method"] == "imperative" and row["time_increase_pct"] is not None]
    if not of:
        return ""
    harvested = [row["harvested_share_pct"] for row in of]
    most = max(of, key=lambda row: row["time_increase_pct"])
    said = (
        f"The rows of the imperative interface have harvested shares of {min(harvested):.1f} to {max(harvested):.1f} %, and "
        f"their largest slowdown is {most['time_increase_pct']:.2f} % ({task_name(most)})."
    )
    if others:
        most = max(others, key=lambda row: row["time_increase_pct"])
        low, high = most["time_increase_ci95_pct"]
        harvested = [row["harvested_share_pct"] for row in others]
        said += (
            f" The same {len(others)} cells were also run on another host, but the samples of that run are lost. It printed a "
            f"largest slowdown of {most['time_increase_pct']:.2f} % ({most['task']}; {low:.2f} to {high:.2f} %), and harvested "
            f"shares of {min(harvested):.1f} to {max(harvested):.1f} %."
        )
    return said


def no_savings(rows):
    """Why some rows of the imperative interface have no *S*."""
    unknown = [task_name(row) for row in rows if row["method"] == "imperative" and not counts_work(row)]
    if not unknown:
        return ""
    return (
        f"*S* is a dash for {', '.join(unknown)}, because these rows counted the side task's work by its steps, and "
        "with the imperative interface a lease counts as one step."
    )


def kept(rows):
    """How many of the rows with a budget in percent are above it."""
    of = [row for row in rows if isinstance(row["budget_pct"], float) and row["time_increase_pct"] is not None]
    if not of:
        return ""
    over = sum(row["time_increase_pct"] > row["budget_pct"] for row in of)
    reach = sum(max(row["time_increase_pct"], row["time_increase_ci95_pct"][1]) > row["budget_pct"] for row in of)
    return (
        f"Of {len(of)} rows with a budget in percent, {over} ended above their budget, and {reach - over} others reach above it with "
        "their interval."
    )


def overruns(record):
    """How many p99 of overruns are above 0, and the largest ones."""
    found = sorted(
        (
            (seen["overruns_quantiles_us"][3], label(run["cell"]), stage)
            for run in record["runs"]
            for stage, seen in run["bubbles"].items()
            if seen["overruns_quantiles_us"]
        ),
        key=lambda one: (-one[0], *one[1:]),
    )
    above = [one for one in found if one[0] > 0]
    if not above:
        return f"The overrun's p99 is 0 in all {len(found)} pairs of a run and a stage."
    said = (
        f"The overrun's p99 is above 0 in {len(above)} of {len(found)} pairs of a run and a stage. "
        f"The largest is {above[0][0] / 1000:.2f} ms ({above[0][1]}; stage {above[0][2]})."
    )
    return said + (f" The second largest is {above[1][0] / 1000:.2f} ms ({above[1][1]})." if len(above) > 1 else "")


def hardly_any(rows):
    """Side tasks that get next to nothing under naive co-location, and why."""
    names = [
        row["side_task"]
        for row in rows
        if row["method"] == "naive"
        and all(rate["in_bubbles_per_s"] < 0.01 * rate["alone_per_s"] for rate in row["rates"])
    ]
    if not names:
        return ""
    return (
        f"Under naive co-location {', '.join(names)} do less than 1 % of the work that they do alone. They cut their "
        "work into pieces that should take 1 ms, by the time that recent pieces took. Under naive co-location this time "
        "is the wait for the GPU's next time slice, so the pieces become tiny. Programs that do not cut their "
        "work would do more, and slow training more."
    )


def summary(rows, machine):
    """The page's first sentences: how much each method slowed training, over the side tasks at a glance."""
    found = {}
    for (method, _), row in glance(rows).items():
        found.setdefault(method, []).append(row)
    if not {"iterative", "mps", "naive"} <= set(found):
        return ""

    def span(method, digits, key="time_increase_pct"):
        of = [row[key] for row in found[method]]
        return f"{min(of):.{digits}f} to {max(of):.{digits}f} %"

    return filled(
        f"Under a slowdown budget of 0.5 %, six side tasks, and four of them mixed, slowed a training on {machine} by {span('iterative', 2)}. "
        f"Their harvested shares were {span('iterative', 0, 'harvested_share_pct')}. [Loading and the hook](#words) are not in that. With NVIDIA's MPS instead of "
        f"FreeRide they slowed training by {span('mps', 0)}, and without either by {span('naive', 0)}."
        + work_beside(rows)
    )


def work_beside(rows):
    """How much of its work alone a side task does beside training, by method: what MPS gives for its slowdown."""
    shares = {}
    for row in rows:
        if row["budget_pct"] is None and row["side_task"] != "mixed" and row["method"] in ("iterative", "mps"):
            rates = [rate for rate in row["rates"] if rate["counted"] and rate["alone_per_s"]]
            if rates:
                mean = sum(rate["in_bubbles_per_s"] / rate["alone_per_s"] for rate in rates) / len(rates)
                shares.setdefault(row["method"], []).append(100 * mean)
    if set(shares) != {"iterative", "mps"}:
        return ""
    mps, ours = (f"{min(shares[method]):.0f} to {max(shares[method]):.0f} %" for method in ("mps", "iterative"))
    return (
        f" Side tasks did more work for that: with MPS {mps} of what they do alone, with FreeRide and without a budget {ours} "
        "([Tables in detail](../bench/tables/details.md#throughput-and-energy-of-side-tasks))."
    )


def later_table():
    """Runs of later versions, each a file of its own that bench/hook_gpu_harvest.py has written. Halves are rounded up."""
    lines = []
    for name, training in LATER.items():
        for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
            lines.append(
                [
                    row["side_task"].split()[0],
                    training,
                    f"{row['iterations_with']} / {row['iterations_without']}",
                    f"{row['time_increase_pct']:+.2f} ± {row['time_increase_ci95_half_pct'] + 1e-9:.2f}",
                    f"{row['harvested_share_pct']:.1f}",
                    f"`{name}.json`",
                ]
            )
    return markdown(
        "side task, no budget | training | open / baseline iterations | slowdown, % | harvested share, % | record in `bench/results`",
        lines,
    )


def glance_table(rows, price):
    """The slowdown by each method."""
    found = glance(rows)
    methods = [(method, name) for method, _, name in GLANCE if any(key[0] == method for key in found)]
    lines = []
    for task in dict.fromkeys(task for _, task in found):
        of = [found.get((method, task)) for method, _ in methods]
        paper = price["paper"].get("iterative", {}).get(task)
        lines.append([task, *(increase(row) if row else "–" for row in of), f"{paper[0]:g}" if paper else "–"])
    head = " | ".join(name for _, name in methods)
    return markdown(f"slowdown, %, by | {head} | the paper's FreeRide, iterative", lines)


def samples_of(record):
    """A function of a row: what its slowdown rests on, as "open / baseline iterations (blocks)"."""
    runs = record["runs"]

    def samples(row):
        run = next(run for run in runs if all(row.get(key) == value for key, value in run["cell"].items()))
        kinds = [sample[1] for sample in run["samples"]]
        blocks = rows_of.blocks_of(run["samples"], run.get("block_iterations"))
        return f"{kinds.count(True)} / {kinds.count(False)} ({len(blocks)})"

    return samples


SAMPLES = "open / baseline iterations (blocks)"


def in_order(rows):
    return sorted(
        rows,
        key=lambda row: (list(METHODS).index(row["method"]), row["budget_pct"] is not None, str(row["budget_pct"])),
    )


def main_table(rows, price, samples):
    lines = []
    for row in in_order(rows):
        paper = price["paper"].get(row["method"], {}).get(row["side_task"])
        lines.append(
            [
                METHODS[row["method"]],
                budget_name(row),
                task_name(row),
                samples(row),
                increase(row),
                number(row["harvested_share_pct"], 1),
                number(row.get("duty_pct"), 0),
                f"{paper[0]:g}" if paper else "–",
            ]
        )
    return markdown(
        f"method | budget | side task | {SAMPLES} | slowdown, % | harvested share, % | duty, % | paper's slowdown, %",
        lines,
    )


def savings_table(rows, price):
    """What the side work of each row was worth."""
    free = {(row["side_task"], row["method"]): row["cost_savings_pct"] for row in rows if row["budget_pct"] is None}
    lines = []
    for row in in_order(rows):
        paper = price["paper"].get(row["method"], {}).get(row["side_task"])
        off = free.get((row["side_task"], row["method"])) if row["budget_pct"] is not None else None
        of_free = 100 * row["cost_savings_pct"] / off if off and row["cost_savings_pct"] is not None else None
        lines.append(
            [
                METHODS[row["method"]],
                budget_name(row),
                task_name(row),
                savings(row),
                number(row["most_savings_pct"]),
                number(of_free, 0),
                f"{paper[1]:g}" if paper else "–",
            ]
        )
    return markdown(
        "method | budget | side task | *S*, % | possible *S*, % | *S*, % of that without a budget | paper's *S*, %",
        lines,
    )


def other_savings_table(rows):
    return markdown(
        "model | schedule, micro-batches | side task | budget | *S*, %",
        [
            [
                row["size"],
                f"{row['schedule']}, {row['micro_batches']}",
                task_name(row),
                budget_name(row),
                number(row["cost_savings_pct"]),
            ]
            for row in rows
        ],
    )


# What is aimed at: of which rows, which figure, at most or at least.
GOALS = [
    ("slowdown, iterative, budget 0.5 %", ("iterative", 0.5), None, "time_increase_pct", "≤", 0.5),
    ("slowdown, imperative, budget 1 %", ("imperative", 1.0), None, "time_increase_pct", "≤", 1.0),
    ("slowdown, iterative, budget off", ("iterative", None), ("resnet18", "resnet50"), "time_increase_pct", "≤", 0.5),
    ("harvested share, budget off", ("iterative", None), ("pagerank", "sgd", "image"), "harvested_share_pct", "≥", 90),
    (
        "harvested share, budget off",
        ("iterative", None),
        ("resnet18", "resnet50", "vgg19"),
        "harvested_share_pct",
        "≥",
        80,
    ),
    (
        "*S*, as a share of the possible *S*, budget auto",
        ("iterative", "auto"),
        ("resnet18", "resnet50", "mixed"),
        "share_of_most_pct",
        "≥",
        80,
    ),
]


def goals_table(rows):
    lines, above = [], []
    for what, (method, budget), tasks, key, sign, goal in GOALS:
        found = []
        for row in rows:
            if row["method"] == method and row["budget_pct"] == budget and (tasks is None or row["side_task"] in tasks):
                most = row["most_savings_pct"]
                value = row.get(key)
                if key == "share_of_most_pct" and most and row["cost_savings_pct"] is not None:
                    value = 100 * row["cost_savings_pct"] / most
                if value is not None:
                    if key == "time_increase_pct" and budget is not None and row["time_increase_ci95_pct"]:
                        above.append(row["time_increase_ci95_pct"][1] > goal)
                    reached = value <= goal if sign == "≤" else value >= goal
                    found.append(
                        f"{'' if reached else '**'}{row['side_task']} {value:.{1 if goal > 10 else 2}f}{'' if reached else '**'}"
                    )
        if found:
            lines.append([what, f"{sign} {goal:g} %", ", ".join(found)])
    found = filled(
        "A goal counts as reached if the middle of the measured interval reaches it. "
        f"Of the {len(above)} intervals of slowdowns under budgets in this table, {sum(above)} reach above their goal."
    )
    found += "\n\n" + markdown("figure | goal | measured, % (bold: missed)", lines)
    beyond = [
        f"{row['side_task']} ({row['time_increase_pct']:.2f} %)"
        for row in rows
        if (row["method"], row["budget_pct"]) == ("iterative", None)
        and row["side_task"] not in ("resnet18", "resnet50")
        and (row["time_increase_pct"] or 0) > 0.5
    ]
    if beyond:
        found += "\n\n" + filled(
            f"Without a budget only resnet18 and resnet50 have a goal for the slowdown. Other side tasks with a slowdown above 0.5 %: {', '.join(beyond)}."
        )
    return found


def budget_table(rows):
    """What a budget made of each side task, beside the same one without."""
    free = {(row["side_task"], row["method"]): row for row in rows if row["budget_pct"] is None}
    lines = []
    for row in rows:
        if row["budget_pct"] is None:
            continue
        off = free.get((row["side_task"], row["method"]))
        lines.append(
            [
                task_name(row),
                METHODS[row["method"]],
                budget_name(row),
                increase(off) if off else "–",
                increase(row, "ramp_"),
                number(row.get("ramp_duty_pct"), 0),
                increase(row),
                number(row["duty_pct"], 0),
            ]
        )
    return markdown(
        "side task | method | budget | slowdown without a budget, % | slowdown before, % | duty before, % | slowdown measured, % | duty at the end, %",
        lines,
    )


def sensitivity_table(rows, samples):
    lines = [
        [
            row["size"],
            f"{row['schedule']}, {row['micro_batches']}",
            task_name(row),
            budget_name(row),
            number(row["iteration_ms"], 1),
            samples(row),
            increase(row),
            number(row["harvested_share_pct"], 1),
        ]
        for row in rows
    ]
    return markdown(
        f"model | schedule, micro-batches | side task | budget | iteration, ms | {SAMPLES} | slowdown, % | harvested share, %",
        lines,
    )


def throughput_table(rows, record):
    """Means over the stages; with the budget off."""
    lines = []
    for row in rows:
        if row["budget_pct"] is not None and row["method"] != "imperative":
            continue
        by_task = {}
        for rate in row["rates"]:
            if not rate["counted"]:
                continue
            by_task.setdefault(rate["side_task"], []).append(rate)
        for name, rates in by_task.items():
            beside = sum(rate["in_bubbles_per_s"] for rate in rates) / len(rates)
            alone = rates[0]["alone_per_s"]
            # Where hardly any work was done, its energy is the noise of everything else.
            energy = [
                rate["joules_per_unit"]
                for rate in rates
                if rate.get("joules_per_unit") is not None and beside > 0.01 * alone
            ]
            lines.append(
                [
                    name if row["side_task"] == name else f"{name} of {row['side_task']}",
                    METHODS[row["method"]],
                    number(beside),
                    number(alone),
                    number(100 * beside / alone if alone else None, 1),
                    rates[0]["unit"],
                    number(sum(energy) / len(energy) if energy else None, 3),
                    number(rates[0].get("alone_joules_per_unit"), 3),
                ]
            )
    cpu = record.get("alone_cpu", {})
    found = markdown(
        "side task | method | with training, units/s | rate alone, units/s | share of the rate alone, % | unit | J a unit with training | J a unit alone",
        lines,
    )
    if cpu:
        found += "\n\n" + markdown(
            "side task | alone on one core, units/s",
            [[name, number(work / seconds, 4)] for name, (work, seconds, *_) in cpu.items()],
        )
    return found


def power_table(rows):
    """Means of the GPUs."""
    lines = []
    for row in rows:
        if not row.get("power") or row["method"] != "iterative" or row["budget_pct"] is not None:
            continue
        mean = {
            (kind, key): sum(of[kind][key] for of in row["power"]) / len(row["power"])
            for kind in ("without", "with")
            for key in ("watts", "sm_mhz", "power_capped_pct")
        }
        clocks = [100 * (of["with"]["sm_mhz"] / of["without"]["sm_mhz"] - 1) for of in row["power"]]
        lines.append(
            [
                task_name(row),
                f"{mean['without', 'watts']:.0f} → {mean['with', 'watts']:.0f}",
                f"{mean['without', 'sm_mhz']:.0f} → {mean['with', 'sm_mhz']:.0f}",
                f"{sum(clocks) / len(clocks):+.1f} ({min(clocks):+.1f} to {max(clocks):+.1f})",
                f"{mean['without', 'power_capped_pct']:.0f} → {mean['with', 'power_capped_pct']:.0f}",
                increase(row),
            ]
        )
    return markdown(
        "side task | power of a GPU, W | SM clock, MHz | clock, % (GPUs) | at the power cap, % of samples | slowdown, %",
        lines,
    )


def bubble_table(record):
    """A line for each run, values of its stages in order."""
    lines = []
    for run in record["runs"]:
        stages = [seen for _, seen in sorted(run["bubbles"].items())]
        if not stages:
            continue

        def each(key, which, stages=stages):
            return ", ".join(str(seen[key][which]) if seen[key] else "–" for seen in stages)

        lines.append(
            [
                label(run["cell"]),
                ", ".join(number(seen["share_pct"], 1) for seen in stages),
                str(sum(seen["bubbles"] for seen in stages)),
                each("edge_to_step_quantiles_us", 1),
                each("edge_to_step_quantiles_us", 3),
                each("overruns_quantiles_us", 3),
            ]
        )
    return markdown(
        "run | bubble share by stage, % | bubbles seen, all stages | edge to first step, p50 by stage, µs | p99 | overrun, p99 by stage, µs",
        lines,
    )


def shape_table(record, rows):
    """A line for each training, values of its stages in order."""
    lines = []
    iteration_ms = {
        (row["size"], f"{row['schedule']}, {row['micro_batches']}"): row["iteration_ms"]
        for row in rows
        if row["method"] == "iterative"
    }
    for phase, run in phases(record).items():
        stages = [seen for _, seen in sorted(run["bubbles"].items())]
        lengths = [[length for _, _, length in seen["waits_ms"]] for seen in stages]
        lines.append(
            [
                *phase,
                number(iteration_ms.get(phase), 1),
                ", ".join(number(seen["share_pct"], 1) for seen in stages),
                ", ".join(str(len(one)) for one in lengths),
                ", ".join(number(max(one, default=None), 0) for one in lengths),
            ]
        )
    return markdown(
        "model | schedule, micro-batches | iteration, ms | bubble share by stage, % | bubbles an iteration | the longest, ms",
        lines,
    )


def missing(record):
    """{name: why} of the scale's cells that no run is of."""
    if record["scale"] not in cells.SCALES:
        return {}
    done = [run["cell"] for run in record["runs"]]
    return {
        label(cell.key): "no time was left" for cell in cells.SCALES[record["scale"]]().cells if cell.key not in done
    }


def filled(text, indent=""):
    """Running text in lines of 100 columns."""
    return "\n".join(textwrap.wrap(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def page(record, rows, price, made):
    about = f"{record['machine']}, {record['stages']} stages" + (
        f", driver {record['driver']}" if record["driver"] else ""
    )
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items() if value and value != "None")
    size = record["sizes"]["middle"]
    commits = ", ".join(dict.fromkeys(run.get("commit") or record["commit"] for run in record["runs"]))
    conditions = [
        ["machine", about],
        ["software", versions],
        ["commits", f"{commits}; the recorded file has each run's"],
        ["date", record["date"]],
        [
            "training",
            f"a GPT of {size['layers']} layers, width {size['width']}, sequences of {size['length']}, micro-batches of {size['batch']}",
        ],
    ]
    terms = [
        [
            "slowdown",
            "by how much open iterations are longer than baseline iterations (*I*, [time increase](glossary.md#measures)). **Loading is not "
            "in it** ([what a start costs](starts.md)), because side tasks are loaded and initialised before. [The hook's own "
            "slowdown](trainers/cost.md#without-side-tasks) is not in it either: at most 0.22 ± 0.07 % in this training and these versions, "
            "in which training's thread slept in waits",
        ],
        ["±", "half of the 95 % interval of the slowdown, from the blocks (Student's t). Few blocks make it wide"],
        [
            SAMPLES,
            "how many iterations were open, how many were [baseline iterations](glossary.md#training), and in how many blocks. "
            "About half are baseline iterations; by default one in ten is. A block counts as one observation",
        ],
        [
            "harvested share",
            "[the harvest as a share of the bubble time of open iterations](glossary.md#measures), over the whole measurement",
        ],
        [
            "duty",
            "[duty](glossary.md#measures) at the end of the measurement. Where it was lower before, the harvested share is lower than this duty suggests",
        ],
        ["naive", "the side task works beside training, and nothing schedules the two"],
        [
            "MPS",
            "the side task works beside training, both as clients of one MPS server. Training has the higher priority",
        ],
    ]
    if record["scale"] in cells.SCALES:
        terms += [
            ["mixed", f"another side task on each stage: {', '.join(cells.SCALES[record['scale']]().mixed)}"],
            ["middle", "the GPT of the table below" + ("; it has 3.8 B parameters" if size["layers"] == 32 else "")],
        ]
    usual, others = [row for row in rows if plain(row)], [row for row in rows if not plain(row)]
    blocks = ["# Results", *filter(None, [record["low_tier"] == "paper" and summary(usual, record["machine"])])]
    if record["low_tier"] == "alone":
        blocks.append(filled("**At this size the figures mean nothing:** they show that the parts work."))

    def section(title, table, *after, before=None):
        """A section around a table; none where that is empty."""
        if table:
            blocks.extend(part for part in (f"## {title}", before, table, *after) if part)

    def shown(word):
        return [f"![{text}]({pathlib.Path(path).name})" for path, text in made if word in pathlib.Path(path).name]

    paper = record["low_tier"] == "paper"
    samples = samples_of(record)
    section(
        "At a glance",
        glance_table(usual, price),
        "Kernel-level scheduling (XSched) is not among the methods; `bench/tables/README.md` says why.",
    )
    section(
        "Later versions",
        paper and later_table(),
        before=filled(
            "Some runs were repeated with later versions, on four H200s. In them training's thread slept in waits, which cost much with tensor parallelism; "
            "with data parallelism the slowdown does not contain it. It does so [no longer](trainers/cost.md#if-the-host-is-hardly-ahead). The figures of the pipeline of four stages are lower than "
            "[below](#time-increase-and-cost-savings); why is not known. [A long run](long-run.md) is on a page of its own."
        ),
    )
    section("Words", markdown("word | meaning", terms))
    section("Conditions", markdown("measured on | ", conditions), filled(versions_of(record)))
    section(
        "Time increase and cost savings",
        main_table(usual, price, samples),
        filled(imperative_range(usual, record.get("other_runs", {}).get("rows", ()))),
        *shown("increase"),
        before=paper
        and filled(
            "This table has the slowdowns and harvested shares. What the side work is worth is in "
            "[Tables in detail](../bench/tables/details.md#cost-savings)."
        ),
    )
    section(
        "The slowdown budget",
        budget_table(usual),
        before=filled(
            kept(usual)
            + (" [The slowdown budget](budget.md#is-it-kept) counts further runs, too." if paper else "")
            + " Before a measurement the side tasks work for some seconds, so that the budget can settle. "
            "Only the columns with *before* show these seconds."
        ),
    )
    like = {row["side_task"].split("+")[0] for row in others}
    base = [
        row for row in usual if row["method"] == "iterative" and row["budget_pct"] is None and row["side_task"] in like
    ]
    section(
        "Sensitivity",
        others and sensitivity_table(base + others, samples),
        before=filled(
            "Compare each row with the first row of its side task, which is also in the tables before."
            + (
                " A dash means that there were fewer than five blocks."
                if any(row["time_increase_pct"] is None for row in base + others)
                else ""
            )
        ),
    )
    bubbles = (
        filled(
            "Several numbers in one cell are those of the stages, in order. "
            + ("[Tables in detail](../bench/tables/details.md) has the figures of each run." if paper else "")
        ),
        shape_table(record, rows),
        *shown("shapes"),
        *shown("breakdown"),
        paper and filled(overruns(record)),
    )
    section("Bubbles", any(bubbles[1:]) and "\n\n".join(filter(None, bubbles)))
    section(
        "Power and clocks",
        power_table(usual),
        before=filled(
            "Each cell shows baseline blocks → open blocks, with the budget off. "
            "A GPU at its power cap lowers its clock when its work draws more power, which can slow training."
        ),
    )
    left = dict(missing(record), **record["failed"])
    section("Not measured", "\n".join(f"- {name}: {why}" for name, why in left.items()))
    made_by = "`bench/tables/page.py` makes this page. Do not edit it."
    if paper:
        made_by += " [Tables in detail](../bench/tables/details.md) has the cost savings, the goals, the bubbles of each run, throughput and energy, the two limits and the commands."
    blocks.append(filled(made_by))
    return "\n\n".join(blocks) + "\n"


def details(record, rows, price, made, pictures_in="../../docs"):
    """What few readers need: cost savings, goals, bubbles of each run, throughput and energy, the two limits, and the commands."""
    usual, others = [row for row in rows if plain(row)], [row for row in rows if not plain(row)]
    low = price["low_tier"]
    blocks = [
        "# Tables in detail",
        filled(
            "This page has what [Results](../../docs/results.md) leaves out, from the same record: cost savings, goals, the bubbles of each run, side tasks' "
            "throughput and energy, side tasks that keep to no limit, and the commands. `bench/tables/page.py` makes it. Do not edit it."
        ),
    ]

    def section(title, *parts):
        if any(parts[1:]):
            blocks.extend(filter(None, (f"## {title}", *parts)))

    def shown(word):
        return [
            f"![{text}]({pictures_in}/{pathlib.Path(path).name})"
            for path, text in made
            if word in pathlib.Path(path).name
        ]

    section(
        "Cost savings",
        filled(
            f"*S*, the [cost savings](../../docs/glossary.md#measures), compares the price of the side work on {low['gpu']} with that of training on "
            f"{price['training']['gpu']}, as the paper does, and not with the price of the GPUs of this record. These do the work many times as fast, so "
            "*S* can exceed 100 %. So compare *S* only between rows of this page, and the slowdown as well, or [put in your own prices](README.md)."
            if record["low_tier"] == "paper"
            else "For *S*, the [cost savings](../../docs/glossary.md#measures), this machine counts as the low-tier GPU."
        ),
        savings_table(usual, price),
        filled(
            "The *possible S* is *S* at the rate alone in all of the bubble time, without a slowdown. It is an estimate, and *S* may exceed it: "
            "a side task reports its work once a second, so in a row of a few seconds *S* is uncertain by about 10 %, for sgd and image by about 30 %."
        ),
        filled(no_savings(usual)),
        others and other_savings_table(others),
        *shown("glance"),
        *shown("frontier"),
    )
    section("Against the goals", None, record["low_tier"] == "paper" and goals_table(usual))
    section(
        "Bubbles of each run",
        filled(
            "*Edge* is the moment at which a bubble begins. Several numbers in one cell are those of the stages, in order. "
            "*Bubbles seen* counts the bubbles of all stages in open iterations. Some stages have few bubbles: in 1F1B with 4 micro-batches "
            "the last stage has one an iteration. Half of the values are no larger than p50, and 99 % no larger than p99. Of 100 values or fewer, p99 is the largest."
        ),
        bubble_table(record),
        filled(overruns(record)),
    )
    section(
        "Throughput and energy of side tasks",
        filled(
            "The budget is off, except in the rows of the imperative interface. The *rate alone* is how many units of work a second a side task does "
            "if it has the device to itself."
        ),
        throughput_table(usual, record),
        filled(hardly_any(usual)),
    )
    limits = [
        filled(
            f"- A side task that {demo['what']} (`{demo['plugin']}` {' '.join(demo['params'])}, memory {demo['memory']}): *{demo['verdict']['kind']}*, {demo['verdict']['reason']}.",
            "  ",
        )
        for demo in record.get("demos", ())
    ]
    section(
        "The two limits",
        None
        if all("commit" in demo for demo in record.get("demos", ()))
        else filled(
            "These two demonstrations are no rows of the tables. Their commit was not recorded, and may be older than the rows' commits."
        ),
        "\n".join(limits),
        *shown("limits"),
    )
    section("Commands", None, "\n".join(["```sh", *record["command"].split("; then "), "```"]))
    return "\n\n".join(blocks) + "\n"


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: page.py RECORDED.json PAGE.md [DETAILS.md]")
    record, target = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    rows, price = record["rows"], rows_of.prices()
    made = pictures.all_of(record, rows, str(target.with_suffix("")))
    target.write_text(page(record, rows, price, made))
    print(target)
    if len(sys.argv) == 4:
        pathlib.Path(sys.argv[3]).write_text(details(record, rows, price, made))
        print(sys.argv[3])


if __name__ == "__main__":
    main()
