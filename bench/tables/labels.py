"""What rows and their figures are called in tables and pictures, and which of them belong together."""

import pandas

METHODS = {"iterative": "FreeRide iterative", "imperative": "FreeRide imperative", "mps": "MPS", "naive": "naive"}


def number(value, digits=2, sign=False):
    return "–" if value is None or pandas.isna(value) else f"{value:{'+' if sign else ''}.{digits}f}"


def increase(row, of=""):
    if row.get(f"{of}time_increase_pct") is None:
        return "–"
    low, high = row[f"{of}time_increase_ci95_pct"]
    return f"{row[f'{of}time_increase_pct']:+.2f} ± {(high - low) / 2:.2f}"


def task_name(row):
    return row["side_task"].replace("+", " and ") + (f", batch {row['batch']}" if row.get("batch") else "")


def budget_name(row):
    budget = row["budget_pct"]
    if row["method"] not in ("iterative", "imperative"):
        return "–"
    return "off" if budget is None else budget if budget == "auto" else f"{budget:g} %"


def schedule(row):
    return f"{row['schedule']}, {row['micro_batches']}"


def plain(row):
    """Of the table that the paper has; the others are about one more thing."""
    usual = (row["schedule"], row["micro_batches"], row["size"]) == ("1F1B", 4, "middle")
    return usual and not row["batch"] and "+" not in row["side_task"]


def counts_work(row):
    """Whether the row's work is what all of its side tasks did."""
    return all(rate["counted"] for rate in row["rates"])


def trainings(record):
    """{(model, schedule): a run of it}, of those that tell of bubbles."""
    found = {}
    for run in record["runs"]:
        if any(seen.get("waits_ms") for seen in run["bubbles"].values()):
            found.setdefault((run["cell"]["size"], schedule(run["cell"])), run)
    return found


def markdown(lines):
    """A table of dicts whose keys are its heads; nothing where there are none."""
    if not lines:
        return ""
    heads = list(lines[0])
    return "\n".join(
        f"| {' | '.join(line)} |" if line else f"|{'---|' * len(heads)}"
        for line in [heads, None, *([str(line[head]) for head in heads] for line in lines)]
    )


def label(cell):
    words = [task_name(cell), cell["method"]]
    words += [] if plain(cell) else [cell["size"], f"{cell['schedule']} × {cell['micro_batches']}"]
    return ", ".join(words) + (f", budget {budget_name(cell)}" if cell["budget_pct"] is not None else "")
