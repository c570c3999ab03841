#!/usr/bin/python3
"""How large the tree is: lines by room, and how many names a user or a reader has to know.

    scripts/count.py             of the tree as it is
    scripts/count.py COMMIT      of a commit

Read are sources, so that nothing has to be built. Lines are those of programs, scripts and build files, blank ones and
comments among them. `tests` are lines of tests and of what tests alone use; `apart` are findings/, whose scripts show
what other software does."""

import io
import pathlib
import re
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
CODE = re.compile(r"\.(c|cc|cpp|cu|h|hpp|cpp\.in|py|sh|js|html|css|cmake|proto|toml)$|(^|/)(CMakeLists\.txt|Makefile)$")
TEST = re.compile(r"(^|/)(tests|testing)/|(^|/)(test_[^/]*|[^/]*_test\.\w+|conftest\.py)$")
DAEMONS = ("manager", "worker", "node", "recorder", "web", "ctl")


def files_of(commit):
    """{path: text} of the files that are code or documents."""
    if commit:
        packed = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            read = {one.name: tar.extractfile(one).read() for one in tar if one.isfile()}
    else:
        words = ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"]
        listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
        read = {name: (ROOT / name).read_bytes() for name in listed if (ROOT / name).is_file()}
    return {
        name: data.decode(errors="replace")
        for name, data in read.items()
        if CODE.search(name) or name.endswith(".md") or data.startswith(b"#!")
    }


def lines_by_room(files):
    """{room: [code, tests, apart]}"""
    rooms = {}
    for name, text in files.items():
        if name.endswith(".md"):
            continue
        room = name.split("/")[0] if "/" in name else "."
        kind = 2 if room == "findings" else 1 if TEST.search(name) else 0
        rooms.setdefault(room, [0, 0, 0])[kind] += text.count("\n")
    return rooms


def found(files, under, pattern):
    """The distinct matches of a pattern in code below some folders, tests left out."""
    return {
        match
        for name, text in files.items()
        if name.startswith(under) and CODE.search(name) and not TEST.search(name)
        for match in re.findall(pattern, text)
    }


def of_table(files, source, table):
    """How many names a table of names has; 0 where it is not there any more."""
    body = re.search(rf"{table}\[\] = \{{\n(.*?)\n\}};", files.get(source, ""), re.S)
    return len(set(re.findall(r'"(\w+)"', body[1]))) if body else 0


def options(files, rooms):
    return {
        (room, name)
        for room in rooms
        for name in found(files, f"{room}/", r'add_(?:option|flag)\w*\((?:[^"()]*,)?\s*"(?:-\w,)?(--[\w-]+)')
    }


def concepts(files):
    """Rows of the table of concepts: the one under a heading that has this word."""
    part = re.search(r"^#+ .*concept.*?$(.*?)(?=^#|\Z)", files.get("ARCHITECTURE.md", ""), re.M | re.S | re.I)
    return max(0, len(re.findall(r"^\|", part[1], re.M)) - 2) if part else None


def names(files):
    called = r'\b(?:add_subcommand|add_change|add_simple|simple|verb)\((?:[^"()]*,)?\s*"([a-z][\w-]*)"'
    configured = [room for room in DAEMONS if found(files, f"{room}/", r"\b(?:bind_config|parse_options)\(")]
    metrics = files.get("docs/reference/metrics.md", "")
    return {
        "verbs of freeride-ctl": len(found(files, "ctl/", called)),
        "options of all programs": len(options(files, (*DAEMONS, "runner"))),
        "configuration keys": len(options(files, [room for room in configured if room != "ctl"])),
        "wire types": len(found(files, "bus/include/", r'\bk(?:Command|Topic) = "([\w.]+)"')),
        "reasons": of_table(files, "policy/src/why.cpp", "kWhys"),
        "kinds of ends": of_table(files, "policy/src/verdict.cpp", "kKinds"),
        "causes": of_table(files, "policy/src/verdict.cpp", "kCauses"),
        "metric families": len(set(re.findall(r"`(freeride_\w+)`", metrics))),
        "concepts of the acting path": concepts(files),
        "words in documents": sum(len(text.split()) for name, text in files.items() if name.endswith(".md")),
    }


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] == ["--help"]:
        sys.exit(__doc__)
    files = files_of(sys.argv[1] if len(sys.argv) == 2 else None)
    rooms = lines_by_room(files)
    print(f"{'lines':14}{'code':>9}{'tests':>9}{'apart':>9}")
    for room, counts in sorted(rooms.items(), key=lambda one: -one[1][0]):
        print(f"{room:14}" + "".join(f"{count:9,}" for count in counts))
    print(f"{'all':14}" + "".join(f"{sum(of):9,}" for of in zip(*rooms.values())))
    for name, count in names(files).items():
        print(f"{name:30}{'no table' if count is None else f'{count:,}':>11}")


if __name__ == "__main__":
    main()
