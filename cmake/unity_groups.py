#!/usr/bin/python3
"""Which sources may be compiled together: none of a group uses a name that another has declared for itself alone.

Usage: unity_groups.py MOST FILE... prints the number of each file's group, separated by ";". Who adds
a helper function never meets that of another file, and need not know of groups."""

import pathlib
import re
import sys

NOT_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.S)
ANONYMOUS = re.compile(r"\bnamespace\s*\{")
DECLARED = re.compile(r"^(?!using|namespace).*?(?<!:)\b([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*(?:\(|=|:(?!:)|$)", re.S)
# A type or a constant wherever it stands alone, a function where it is called: others' members and variables are no matter.
USED = re.compile(r"(?<![.:>\w])(?:([A-Z]\w*|k[A-Z]\w*)\b|([a-z_]\w*)(?=\s*[(<]))|->\s*\w+")
NO_NAMES = {
    "void",
    "int",
    "bool",
    "char",
    "const",
    "noexcept",
    "override",
    "if",
    "for",
    "while",
    "switch",
    "return",
    "sizeof",
}


def end_of_block(text, begin):
    depth = 1
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def own_names(text):
    """Names declared in anonymous namespaces, as static, or as macros."""
    names = set(re.findall(r"^\s*#\s*define\s+(\w+)", text, re.M)) | set(
        re.findall(r"^static\b[^;{(=]*?(\w+)\s*[;{(=]", text, re.M)
    )
    for found in ANONYMOUS.finditer(text):
        inner = text[found.end() : end_of_block(text, found.end())]
        flat, depth = [], 0  # without what stands in braces
        for char in inner:
            depth -= char == "}"
            if depth == 0:
                flat.append(";" if char == "}" else char)
            depth += char == "{"
        for statement in re.split(r"[;{]", "".join(flat)):
            if declared := DECLARED.search(statement.strip()):
                names.add(declared[1])
    return names - NO_NAMES


def groups(texts, most):
    made, numbers = [], []  # a group: its using directives, own names, all words, number of files
    for raw in texts:
        text = NOT_CODE.sub(" ", raw)
        using = set(re.findall(r"^using namespace ([^=;]+);", text, re.M))
        own = own_names(text)
        words = own | {word for found in USED.findall(text) for word in found}
        for at, (others, names, used, size) in enumerate(made):
            if size < most and using == others and not own & used and not words & names:
                made[at] = (using, names | own, used | words, size + 1)
                numbers.append(at)
                break
        else:
            numbers.append(len(made))
            made.append((using, own, words, 1))
    return numbers


if __name__ == "__main__":
    found = [pathlib.Path(name) for name in sys.argv[2:]]
    print(*groups([path.read_text() for path in found], int(sys.argv[1])), sep=";", end="")
