"""What runs and their rows are called on the page and in its pictures, and which of them belong together."""

METHODS = {"iterative": "FreeRide iterative", "imperative": "FreeRide imperative", "mps": "MPS", "naive": "naive"}


def task_name(row):
    return row["side_task"].replace("+", " and ") + (f", batch {row['batch']}" if row.get("batch") else "")


def budget_name(row):
    if row["method"] not in ("iterative", "imperative"):
        return "–"
    return (
        "off"
        if row["budget_pct"] is None
        else row["budget_pct"]
        if row["budget_pct"] == "auto"
        else f"{row['budget_pct']:g} %"
    )


def plain(row):
    """Of the table that the paper has; the others are about one more thing."""
    return (
        (row["schedule"], row["micro_batches"], row["size"]) == ("1F1B", 4, "middle")
        and not row["batch"]
        and "+" not in row["side_task"]
    )


def counts_work(row):
    """Whether the row's work is what all of its side tasks did."""
    return all(rate["counted"] for rate in row["rates"])


# At a glance: method, budget, what it is called there.
GLANCE = [
    ("iterative", 0.5, "FreeRide iterative, budget 0.5 %"),
    ("imperative", 1.0, "FreeRide imperative, budget 1 %"),
    ("mps", None, "MPS"),
    ("naive", None, "naive"),
]


def glance(rows):
    """{(method, side task): row} of the methods that one chooses between."""
    wanted = {(method, budget) for method, budget, _ in GLANCE}
    return {
        (row["method"], row["side_task"]): row
        for row in rows
        if (row["method"], row["budget_pct"]) in wanted and row["time_increase_pct"] is not None
    }


def phases(record):
    """One run of each training, by its model and schedule."""
    found = {}
    for run in record["runs"]:
        if run["bubbles"] and any(seen.get("waits_ms") for seen in run["bubbles"].values()):
            found.setdefault((run["cell"]["size"], f"{run['cell']['schedule']}, {run['cell']['micro_batches']}"), run)
    return found


def label(cell):
    words = [task_name(cell), cell["method"]] + (
        [] if plain(cell) else [cell["size"], f"{cell['schedule']} × {cell['micro_batches']}"]
    )
    return ", ".join(words) + (f", budget {budget_name(cell)}" if cell["budget_pct"] is not None else "")
