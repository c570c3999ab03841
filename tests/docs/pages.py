"""What a page of the documentation tells its reader to type, taken from the Markdown itself.

A block that is indented by four spaces, or fenced as ```sh, is commands. A fenced ```cpp, ```c or ```python block is the file that the next commands
name and nobody has; a ```python block that is nobody's file, and begins with an import, is a program. All other fences are text. The comment
`<!-- not run by tests: why -->` before a block keeps it from being run. A line whose remark says "until Ctrl-C" gets Ctrl-C after its first output.
"""

import dataclasses
import pathlib
import re

SUFFIXES = {"cpp": "cpp", "c": "c", "python": "py"}
NOT_RUN = re.compile(r"<!-- not run by tests: (.+) -->")
PROGRAM = re.compile(r"(import|from) ")


@dataclasses.dataclass
class Block:
    line: int  # of its first line of content, from 1
    language: str  # "sh" for commands
    lines: list
    not_run: str = ""  # why; empty: it is run

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"


def blocks(markdown):
    """All blocks of a page, in order."""
    found, lines, reason, at = [], markdown.splitlines(), "", 0
    while at < len(lines):
        line = lines[at]
        fence = re.match(r"```(\w*)", line)
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].startswith("```"))
            found.append(Block(at + 2, fence.group(1) or "text", lines[at + 1 : end], reason))
            at, reason = end + 1, ""
        elif line.startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            found.append(Block(at + 1, "sh", [text[4:] for text in lines[at:end]], reason))
            at, reason = end, ""
        else:
            marked = NOT_RUN.fullmatch(line.strip())
            reason = marked.group(1) if marked else reason if not line.strip() else ""
            at += 1
    return found


def not_run(path):
    """The blocks that are marked: (line, why, text)."""
    return [(block.line, block.not_run, block.text) for block in blocks(path.read_text()) if block.not_run]


def script(path, folder):
    """Writes the files of the page's blocks into the folder. Returns the page as a shell script with the page's own line numbers."""
    text = path.read_text()
    page = [""] * (len(text.splitlines()) + 1)
    found = blocks(text)
    for number, block in enumerate(found):
        if block.not_run:
            continue
        if block.language == "sh":
            for offset, line in enumerate(block.lines):
                before = ("" if offset else "look; ") + ("live " if re.search(r"#.*until Ctrl-C", line) else "")
                page[block.line - 1 + offset] = before + line
        elif block.language in SUFFIXES:
            name = file_of(block, found[number + 1 :])
            if name and not (folder / name).exists():
                (folder / name).write_text(block.text)
            elif block.language == "python" and PROGRAM.match(block.lines[0]):
                (folder / f"line{block.line}.py").write_text(block.text)
                page[block.line - 2] = f"live /usr/bin/python3 line{block.line}.py"
    return "\n".join(page) + "\n"


def file_of(block, later):
    """The file's name by which the next commands call the block; empty: they do not, or other code comes before them."""
    for other in later:
        if other.language == block.language:
            return ""
        if other.language == "sh":
            named = re.search(rf"(?:^|[\s/])([\w-]+\.{SUFFIXES[block.language]})\b", other.text)
            return pathlib.Path(named.group(1)).name if named else ""
    return ""
