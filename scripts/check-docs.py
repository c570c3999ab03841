#!/usr/bin/python3
"""Holds the documents to the rules of CONTRIBUTING.md.

    scripts/check-docs.py                says what is wrong; exit code 1 if anything is
    scripts/check-docs.py --build BUILD  also commands, options, settings: BUILD/bin has the programs
    scripts/check-docs.py wrap FILE...   wraps paragraphs with lines of more than 100 columns
    scripts/check-docs.py long [FILE...] lists sentences of more than 32 words

Checked are columns (100; tables, code and links apart), tables without a row, words of a sentence (32, without those of code) and of
the front page (600), links to files and headings, spelling (codespell of docs-venv.sh), tests that are named,
the closed sets of reasons, verdicts and metrics against the sources, make targets, names of environment variables, and with
--build every command line of a block, every option in running text, and every key of a toml block."""

import argparse
import functools
import importlib.util
import pathlib
import posixpath
import re
import shlex
import subprocess
import sys

COLUMNS = 100
WORDS = 32
FRONT_PAGE = 600
FENCE = re.compile(r"^\s*(```|~~~)")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
SPAN = re.compile(r"(`+)(.+?)\1", re.S)
ITEM = re.compile(r"^(\s*)([-*]|\d+\.) +")
# Options of others' programs, and parts of words, that stand in running text.
FOREIGN = {
    "--cap-add", "--config", "--cpu-rt-runtime", "--cpu-shares", "--deepspeed", "--deepspeed_config", "--enable-shared",
    "--flags", "--gpus", "--hours", "--ipc", "--its", "--module", "--nproc_per_node", "--num_gpus", "--pid", "--privileged",
    "--rm", "--your",
}  # fmt: skip
# As long as they must be: specifications, history, results and the lab.
ANY_LENGTH = re.compile(r"bus/WIRE\.md|pages/README\.md|CHANGELOG\.md|bench/.*|docs/results\.md")
IGNORED_WORDS = "crate,te,ser,hist,inout,claus,ba,nd,ot,ue,fo,parth,uint,unter,anull,doubleclick,statics,warmup,bu"


class Tree:
    def __init__(self, root):
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
        )
        files = [name for name in listed.stdout.splitlines() if (root / name).is_file()]
        self.files = set(files)
        self.documents = [name for name in files if name.endswith(".md")]
        self.folders = {parent.as_posix() for name in files for parent in pathlib.PurePath(name).parents}

    @functools.cache  # noqa: B019
    def text(self, name):
        return (self.root / name).read_text()

    @functools.cached_property
    def sources(self):
        """All text that is no document, in one."""
        parts = []
        for name in sorted(self.files):
            if not name.endswith((".md", ".png", ".msgpack", ".json", ".zip")):
                parts.append((self.root / name).read_text(errors="replace"))
        return "\n".join(parts)


def kinds(text):
    """Each line of a document with what it is: text, code, table or other."""
    fenced, before = False, "blank"
    for line in text.splitlines():
        if FENCE.match(line):
            fenced, kind = not fenced, "code"
        elif fenced:
            kind = "code"
        elif not line.strip():
            kind = "blank"
        elif line.startswith("    ") and before in ("blank", "indented"):
            kind = "indented"
        elif line.lstrip().startswith("|"):
            kind = "table"
        elif line.startswith(("#", "<!--", "!!!", ">")):
            kind = "other"
        else:
            kind = "text"
        yield line, kind
        before = kind if kind != "blank" or before != "indented" else "indented"


# ---- what is checked ----------------------------------------------------------------------------------------------------


def columns(tree):
    for name in tree.documents:
        for number, (line, kind) in enumerate(kinds(tree.text(name)), 1):
            if kind not in ("text", "other") or len(line) <= COLUMNS:
                continue
            if len(LINK.sub("", line)) <= COLUMNS and (LINK.search(line) or "](" in line):
                continue
            if line.startswith("<!--"):
                continue
            yield f"{name}:{number}: {len(line)} columns, more than {COLUMNS}: scripts/check-docs.py wrap {name}"


def tables(tree):
    """A table ends at the first line that is none of its rows, so a blank line below its head makes text of the rows."""
    for name in tree.documents:
        lines = list(kinds(tree.text(name)))
        for number, (line, kind) in enumerate(lines, 1):
            head = kind == "table" and re.fullmatch(r"\s*\|([ :]*-[- :]*\|)+\s*", line)
            if head and (number == len(lines) or lines[number][1] != "table"):
                yield f"{name}:{number}: a table without a row"


def lists(tree):
    """A number and a point at a line's start make an item of a list, also in the middle of a sentence."""
    for name in tree.documents:
        in_list, before = False, "blank"
        for number, (line, kind) in enumerate(kinds(tree.text(name)), 1):
            if kind != "text":
                in_list = in_list and kind == "blank"
            elif ITEM.match(line):
                if before == "text" and not in_list and re.match(r"\s*\d+\.", line):
                    yield f"{name}:{number}: the number begins a list: move it to the line before"
                in_list = True
            elif before == "blank":
                in_list = in_list and line.startswith(" ")
            before = kind


def slug(heading):
    """A heading's anchor, as GitHub and the site make it."""
    text = re.sub(r"[`*]", "", LINK.sub(lambda match: match[0][1 : match[0].index("](")], heading))
    return re.sub(r"[^\w\- ]", "", text.lower().strip()).replace(" ", "-")


def anchors(text):
    found, seen = set(), {}
    for line, kind in kinds(text):
        heading = re.match(r"#+ +(.*)", line) if kind == "other" else None
        if heading:
            one = slug(heading[1])
            again = seen.get(one, 0)
            seen[one] = again + 1
            found.add(f"{one}-{again}" if again else one)
    return found


def prose(text):
    """The text without its code blocks; lines keep their numbers."""
    return "\n".join("" if kind in ("code", "indented") else line for line, kind in kinds(text))


def links(tree):
    for name in tree.documents:
        text = SPAN.sub(lambda match: "x" * len(match[0]) if "\n" not in match[0] else match[0], prose(tree.text(name)))
        for match in re.finditer(r"\]\(([^()\s]+)\)", text):
            target = match[1]
            where = f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            to = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            made = re.fullmatch(r"docs/reference/freeride-[a-z]+\.md", to) is not None
            if to not in tree.files and to not in tree.folders and not made:
                yield f"{where}: there is no {to}"
            elif anchor and to in tree.files and to.endswith(".md") and anchor not in anchors(tree.text(to)):
                yield f"{where}: {to} has no heading #{anchor}"


# `tests/e2e/test_x.py`: "test_a", "test_b"; what shows a claim.
SHOWN = re.compile(r'`([\w./-]+\.(?:cpp|py))`(?:, with[^:|]*)?: ("[^"|]+"(?:[,;] "[^"|]+")*)')


def shown(tree):
    """Tests that a document names, and that are not there."""
    for name in tree.documents:
        for number, line in enumerate(tree.text(name).splitlines(), 1):
            for file, cases in SHOWN.findall(line):
                # A long name may be several strings of the source.
                source = re.sub(r'"\s*\n\s*"', "", tree.text(file)) if file in tree.files else ""
                for case in re.findall(r'"([^"]+)"', cases):
                    if case not in source:
                        yield f"{name}:{number}: {file} has no test {case!r}"


def spelling(tree):
    tools = subprocess.run(
        [tree.root / "scripts/docs-venv.sh"], capture_output=True, text=True, check=True
    ).stdout.strip()
    done = subprocess.run(
        [f"{tools}/bin/codespell", "--ignore-words-list", IGNORED_WORDS, *tree.documents],
        cwd=tree.root,
        capture_output=True,
        text=True,
        check=False,
    )
    yield from done.stdout.splitlines()
    if done.returncode not in (0, 65):
        yield done.stderr.strip()


def closed_sets(tree):
    """Each name of a closed set has its row, and each row its name."""
    for source, table, page in (
        ("policy/src/why.cpp", "kWhys", "docs/tasks/why.md"),
        ("policy/src/rank_why.cpp", "kRankWhys", "docs/trainers/not-hooked.md"),
        ("policy/src/verdict.cpp", "kKinds", "docs/reference/verdicts.md"),
        ("policy/src/verdict.cpp", "kCauses", "docs/reference/verdicts.md"),
    ):
        body = re.search(rf"{table}\[\] = \{{\n(.*?)\n\}};", tree.text(source), re.S)[1]
        names = set(re.findall(r'\{\w+::\w+,\s*"(\w+)"', body))
        rows = set(re.findall(r"^\| `(\w+)`", tree.text(page), re.M))
        for missing in sorted(names - rows):
            yield f"{page}: {source} has `{missing}`, which has no row"
    decisions = {pathlib.Path(name).stem for name in tree.files if re.fullmatch(r"policy/include/.*\.hpp", name)}
    for missing in sorted(decisions - set(re.findall(r"^\| `(\w+)`", tree.text("policy/README.md"), re.M))):
        yield f"policy/README.md: `{missing}` has no row"
    told = set(re.findall(r"`(freeride_\w+)`", tree.text("docs/reference/metrics.md")))
    made = "".join(tree.text(name) for name in tree.files if name.startswith("web/src/"))
    for metric in sorted(told):
        if metric.removeprefix("freeride_").removesuffix("_total") not in made:
            yield f"docs/reference/metrics.md: web/src has no metric {metric}"


def names(tree):
    """Make targets and environment variables."""
    targets = set(re.findall(r"^([\w-]+):", tree.text("Makefile"), re.M))
    for name in tree.documents:
        for number, (line, kind) in enumerate(kinds(tree.text(name)), 1):
            start = r"^ *" if kind in ("code", "indented") else "`"
            for target in re.findall(rf"{start}make ([a-z][\w-]*)", line):
                if target not in targets:
                    yield f"{name}:{number}: the Makefile has no target {target}"
            if name == "CHANGELOG.md":
                continue
            for variable in re.findall(r"\bFREERIDE_[A-Z0-9_]*[A-Z0-9]\b", line):
                if variable not in tree.sources and variable.removeprefix("FREERIDE_") not in known_variables():
                    yield f"{name}:{number}: nothing reads {variable}"


# ---- commands -----------------------------------------------------------------------------------------------------------


def load_module(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


PROGRAMS = {}  # name -> what its --help says


def known_variables():
    """NAME of each FREERIDE_NAME that a program reads: its options, alone and behind the program's own name."""
    return {
        prefix + one.removeprefix("--").upper().replace("-", "_")
        for name, program in PROGRAMS.items()
        for item in program.options
        for one in item.names
        for prefix in ("", name.removeprefix("freeride-").upper() + "_")
    }


def learn_programs(tree, build):
    docs = load_module(tree.root / "scripts/cli-docs.py", "cli_docs")
    for name in ("ctl", "manager", "worker", "node", "runner", "recorder", "web"):
        program = build / "bin" / f"freeride-{name}"
        if not program.exists():
            sys.exit(f"check-docs: {program} is not built")
        PROGRAMS[f"freeride-{name}"] = docs.parse([str(program)])


def wrong_in(words):
    """What is wrong with a command line of one of our programs, its words given."""
    command = root = PROGRAMS[words[0]]
    options = {one: item for item in root.options for one in item.names}
    at, arguments = 1, 0
    while at < len(words):
        word, _, given = words[at].partition("=")
        at += 1
        if word == "--":
            return
        if word.startswith("-") and not re.fullmatch(r"-?\d.*|-", word):
            item = options.get(word)
            if item is None:
                yield f"{' '.join(words[:1] + command.words[1:])} has no option {word}"
                return
            if item.takes_value and not given:
                at += 1
            continue
        verbs = dict((verb.name, inner) for verb, inner in command.verbs)
        if word in verbs and arguments == 0:
            command = verbs[word]
            options |= {one: item for item in command.options for one in item.names}
        elif command.verbs and not command.arguments and re.fullmatch(r"[a-z][a-z-]*", word):
            yield f"{' '.join(words[:1] + command.words[1:])} has no verb {word}"
            return
        else:
            arguments += 1


def command_lines(text):
    """(line, words) of every command in a shell block."""
    number = 0
    for whole in text.replace("\\\n", " ").splitlines():
        number += 1
        for part in re.split(r"&&|\|\||[;|&]|\$\(|\)|>", whole.split(" #")[0]):
            try:
                words = shlex.split(part)
            except ValueError:
                continue
            while words and (re.match(r"\w+=", words[0]) or words[0] in ("sudo", "exec", "live")):
                words.pop(0)
            if words:
                yield number, [words[0].rsplit("/", 1)[-1], *words[1:]]


def commands(tree):
    pages = load_module(tree.root / "tests/docs/pages.py", "pages")
    verbs = {verb.name: inner for verb, inner in PROGRAMS["freeride-ctl"].verbs}
    ours = {
        one
        for program in PROGRAMS.values()
        for command in walk(program)
        for item in command.options
        for one in item.names
    }
    for name in tree.documents:
        if name == "CHANGELOG.md":
            continue
        text = tree.text(name)
        for block in pages.blocks(text):
            if block.language == "sh":
                for offset, words in command_lines(block.text):
                    if words[0] in PROGRAMS:
                        for problem in wrong_in(words):
                            yield f"{name}:{block.line + offset - 1}: {problem}"
            elif block.language == "toml":
                yield from keys(name, block)
        for match in SPAN.finditer(prose(text)):
            where = f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
            for _, words in command_lines(" ".join(match[2].split())):
                if words[0] in PROGRAMS:
                    yield from (f"{where}: {problem}" for problem in wrong_in(words))
                elif words[0] in verbs and len(words) > 1 and any(word.startswith("--") for word in words):
                    yield from (f"{where}: {problem}" for problem in wrong_in(["freeride-ctl", *words]))
                elif words[0].startswith("--"):
                    option = words[0].partition("=")[0]
                    if option not in ours and option not in FOREIGN and f'"{option}"' not in tree.sources:
                        if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", tree.sources):
                            yield f"{where}: nothing has an option {option}"


def walk(command):
    yield command
    for _, inner in command.verbs:
        yield from walk(inner)


# Sections that are no program's: of names chosen by the operator.
LIST_SECTIONS = {"accounts"}


def keys(name, block):
    section = None
    for number, line in enumerate(block.lines, block.line):
        heading = re.match(r"\[(\w+)\]", line)
        if heading:
            section = PROGRAMS.get(f"freeride-{heading[1]}")
            if section is None and heading[1] not in LIST_SECTIONS:
                yield f"{name}:{number}: no program reads [{heading[1]}]"
        elif section is not None and (key := re.match(r"([\w-]+) *=", line)):
            option = f"--{key[1].replace('_', '-')}"
            if not any(option in item.names for item in section.options):
                yield f"{name}:{number}: {section.words[0].rsplit('/', 1)[-1]} has no key {key[1]}"


# ---- mending ------------------------------------------------------------------------------------------------------------


def pieces(paragraph):
    """Its words; a span of code or a link's target is not cut."""
    kept = SPAN.sub(lambda match: " ".join(match[0].split()).replace(" ", "\0"), " ".join(paragraph.split()))
    return [word.replace("\0", " ") for word in kept.split()]


def filled(words, first, rest):
    joined = []
    for word in words:  # what begins a list or a heading does not begin a line
        if joined and re.match(r"([-+*#|>]|\d+\.$)", word):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    lines, line = [], first
    for word in joined:
        start = line in (first, rest)
        if not start and len(line) + 1 + len(word) > COLUMNS:
            lines.append(line)
            line, start = rest, True
        line += word if start else f" {word}"
    return [*lines, line]


def wrap(text):
    made, paragraph, whole, first, rest = [], [], [], "", ""

    def end():
        nonlocal paragraph, whole
        if any(len(line) > COLUMNS for line in whole):
            made.extend(filled(pieces(" ".join(paragraph)), first, rest))
        else:
            made.extend(whole)
        paragraph, whole = [], []

    for line, kind in kinds(text):
        if kind != "text" or line.endswith("  "):
            end()
            made.append(line)
            continue
        item = ITEM.match(line)
        if item:
            end()
            first, rest = item[0], " " * len(item[0])
            paragraph = [line[len(item[0]) :]]
            whole = [line]
        elif paragraph:
            paragraph.append(line)
            whole.append(line)
        else:
            indent = re.match(r"\s*", line)[0]
            first = rest = indent
            paragraph = [line.strip()]
            whole = [line]
    end()
    return "\n".join(made) + "\n"


def sentences(text):
    """(line, sentence) of the running text."""
    number, paragraph, began = 0, [], 0
    lines = [*kinds(text), ("", "blank")]
    for line, kind in lines:
        number += 1
        if kind == "text" and not (ITEM.match(line) and paragraph):
            began = began if paragraph else number
            paragraph.append(ITEM.sub("", line))
            continue
        whole = " ".join(" ".join(paragraph).split())
        whole = LINK.sub(lambda match: match[0][1 : match[0].index("](")], whole)
        for sentence in re.split(r"(?<=[.!?])\s+|(?<=[.!?]\*\*)\s+|(?<=[:;])\s+(?=[A-Z`*\[(])", whole):
            if sentence:
                yield began, sentence
        paragraph = [ITEM.sub("", line)] if kind == "text" else []
        began = number


def lengths(tree):
    if "README.md" in tree.documents and (words := len(tree.text("README.md").split())) > FRONT_PAGE:
        yield f"README.md: {words} words, more than {FRONT_PAGE}"
    yield from long_sentences(tree, [name for name in tree.documents if not ANY_LENGTH.fullmatch(name)])


def long_sentences(tree, files):
    for name in files:
        for number, sentence in sentences(tree.text(name)):
            words = len(SPAN.sub("x", sentence).split())
            if words > WORDS:
                yield f"{name}:{number}: {words} words: {sentence}"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("verb", nargs="?", default="check", choices=("check", "wrap", "long"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--build", type=pathlib.Path)
    options = parser.parse_args()
    tree = Tree(pathlib.Path(__file__).resolve().parents[1])
    if options.verb == "wrap":
        for name in options.files:
            pathlib.Path(name).write_text(wrap(pathlib.Path(name).read_text()))
        return 0
    if options.verb == "long":
        print(*long_sentences(tree, options.files or tree.documents), sep="\n")
        return 0
    checks = [columns, tables, lists, lengths, links, shown, spelling, closed_sets]
    if options.build:
        learn_programs(tree, options.build)
        checks += [names, commands]
    problems = [problem for check in checks for problem in check(tree)]
    print(*problems, sep="\n", end="\n" if problems else "")
    if not problems:
        print(f"documents: ok{'' if options.build else ' (commands: with --build)'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
