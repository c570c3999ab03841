"""Real data for the side tasks, found on this machine."""
import collections
import pathlib
import re
import sysconfig


def picture_folder():
    """A folder with real JPEG and PNG pictures, or None: then the image task draws its own."""
    try:
        import matplotlib
        folder = pathlib.Path(matplotlib.get_data_path()) / "sample_data"
    except ImportError:
        return None
    return folder if any(folder.glob("*.jpg")) else None


def write_identifier_graph(path, limit_bytes=8 << 20):
    """Writes a graph as SNAP edge list: who follows whom among the identifiers of Python's standard library. Returns their names by number."""
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
