"""Real data for the side tasks, found on this machine."""

import collections
import pathlib
import re
import sysconfig

TINY_TRAINING = ["batch=4", "image=32", "classes=10", "width_pct=12", "piece_ms=1"]

# The side tasks that there may be, each with its parameters for a graph file and a picture folder (or None): small, so
# that all of them do something within a short run.
SIDE_TASKS = {
    "pagerank": lambda graph, pictures: [f"input={graph}"],
    "image": lambda graph, pictures: [f"input={pictures}"] if pictures else [],
    "sgd": lambda graph, pictures: ["scale=12"],
    "resnet18": lambda graph, pictures: TINY_TRAINING,
    "resnet50": lambda graph, pictures: TINY_TRAINING,
    "vgg19": lambda graph, pictures: TINY_TRAINING,
    "canary": lambda graph, pictures: ["memory_mib=1"],
}


def choose_side_tasks(wanted, folder, stages):
    """Names of plugins, the first for stage 0: at least one for each stage; of more, several take turns. `wanted`:
    names separated by commas, or "all" that lie in `folder`. ValueError for others."""
    names = [name for name in wanted.split(",") if name]
    if wanted == "all":
        names = [name for name in SIDE_TASKS if any(folder.rglob(f"{name}.so"))]
    if not names or any(name not in SIDE_TASKS for name in names):
        raise ValueError(f"--side-tasks {wanted}: choose among {', '.join(SIDE_TASKS)}, which have to be built, or all")
    return [names[index % len(names)] for index in range(max(stages, len(names)))]


def picture_folder():
    """A folder with real JPEG and PNG pictures, or None: then the image task draws its own."""
    try:
        import matplotlib

        folder = pathlib.Path(matplotlib.get_data_path()) / "sample_data"
    except ImportError:
        return None
    return folder if any(folder.glob("*.jpg")) else None


def write_identifier_graph(path, limit_bytes=8 << 20):
    """Writes a graph as SNAP edge list: who follows whom among the identifiers of Python's standard library. Returns
    their names by number."""
    numbers, edges = {}, collections.Counter()
    size = 0
    for source in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py")):
        if "test" in source.parts or "dist-packages" in source.parts:
            continue
        text = source.read_text(errors="replace")
        size += len(text)
        words = [numbers.setdefault(word, len(numbers)) for word in re.findall(r"[A-Za-z_]\w*", text)]
        edges.update(zip(words, words[1:]))
        if size >= limit_bytes:
            break
    with open(path, "w") as file:
        file.write(f"# identifiers of the standard library: {len(numbers)} vertices, {len(edges)} edges\n")
        file.writelines(f"{a}\t{b}\n" for a, b in edges)
    return list(numbers)
