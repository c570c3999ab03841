#!/usr/bin/python3
"""Holds the code to the tables of who may use whom: includes of C and C++, imports of Python.

    scripts/check-folders.py [TREE]

ARCHITECTURE.md's table is of folders; its rows read `| `folder/` | what lives there | may use |`, and "all" in the last
column lifts the rule. A folder's README.md may have one of its rooms, whose last column is "may use of the others".
Nowhere may use run in a circle: among Python modules (by what they import when they are imported), a folder's rooms, or
folders. No Python outside of a folder imports names of it that begin with "_". Tests may use everything."""

import ast
import collections
import os
import pathlib
import re
import subprocess
import sys

OWNERS = {  # include prefix -> folder
    "freeride/base/": "base",
    "freeride/policy/": "policy",
    "freeride/bus/": "bus",
    "freeride/pages": "pages",
    "freeride/plugin": "plugin-api",
    "freeride/hook": "hooks",
    "freeride/worker/": "worker",
    "freeride/seccomp": "containers",
    "freeride/manager/": "manager",
    "freeride/recorder/": "recorder",
}
LIBRARIES = {"zmq": "ZeroMQ", "msgpack": "MessagePack"}
ROW = re.compile(r"\|\s*`([\w/-]+)/`\s*\|(.*)\|([^|]*)\|\s*$")
INCLUDE = re.compile(r'\s*#\s*include\s+[<"]([^>"]+)[>"]')


def is_test(name):
    base = os.path.basename(name)
    return base.startswith("test_") or re.search(r"_test(_support|_library)?\.\w+$", base) is not None


def row_of(match):
    return match[1], {word.strip(" `\n/") for word in match[3].split(",")}


def circles(uses):
    """The circles in {one: whom it uses}, each told once, from its first in order."""
    found, done = [], set()

    def follow(one, way):
        if one in way:
            circle = way[way.index(one) :]
            at = circle.index(min(circle))
            found.append((*circle[at:], *circle[:at]))
        elif one not in done:
            for other in sorted(uses.get(one, ())):
                follow(other, [*way, one])
            done.add(one)

    for one in sorted(uses):
        follow(one, [])
    return list(dict.fromkeys(found))


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        done = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=self.root,
            capture_output=True,
            text=True,
            check=True,
        )
        self.files = [
            name
            for name in done.stdout.splitlines()
            if (self.root / name).is_file() and (name[0] != "." or "/" not in name)
        ]
        self.problems = []
        self.folders = dict(row_of(match) for match in map(ROW.match, self.lines("ARCHITECTURE.md")) if match)
        self.used = collections.defaultdict(set)  # folder -> folders, without tests'
        self.rooms = {
            name[: -len("/README.md")]: found
            for name in self.files
            if name.endswith("/README.md") and (found := self.rooms_of(name))
        }

    def lines(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace").splitlines()

    def rooms_of(self, readme):
        """{room: rooms that it may use}, where the README has such a table."""
        found, inside = {}, False
        for line in self.lines(readme):
            inside = line.startswith("|") and (inside or line.rstrip(" |").endswith("may use of the others"))
            match = ROW.match(line) if inside else None
            if match:
                room, uses = row_of(match)
                found[room] = uses - {"–", ""}
        return found

    def row(self, name):
        """The longest row of ARCHITECTURE.md that holds the file."""
        return max((row for row in self.folders if name.startswith(row + "/")), key=len, default=None)

    def use(self, name, number, owner, what):
        """A file uses something of the folder `owner`."""
        row = self.row(name)
        if row is None or owner == row.split("/")[0] or is_test(name):
            return
        if "all" not in self.folders[row]:
            self.used[row.split("/")[0]].add(owner)
            if owner not in self.folders[row]:
                self.problems.append(f"{name}:{number}: {row}/ may not use {owner}/ ({what})")

    def check(self):
        self.check_folders()
        self.check_includes()
        self.check_imports()
        for circle in circles(self.used):
            self.problems.append(f"folders use each other in a circle: {' → '.join([*circle, circle[0]])}")
        return self.problems

    def check_folders(self):
        for folder in sorted({name.split("/")[0] for name in self.files if "/" in name}):
            if folder not in self.folders:
                self.problems.append(f"{folder}/ is not in ARCHITECTURE.md's table")
            elif f"{folder}/README.md" not in self.files:
                self.problems.append(f"{folder}/ has no README.md")

    # ---- C and C++
    def check_includes(self):
        between = collections.defaultdict(lambda: collections.defaultdict(set))  # folder -> room -> rooms
        for name in self.files:
            if not name.endswith((".c", ".h", ".cpp", ".hpp")):
                continue
            folder, _, rest = name.partition("/")
            rooms, room = self.rooms.get(folder, {}), rest.partition("/")[0]
            for number, line in enumerate(self.lines(name), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                include = match[1]
                for prefix, owner in OWNERS.items():
                    if include.startswith(prefix):
                        self.use(name, number, owner, include)
                self.check_library(name, number, folder, include)
                other = include.partition("/")[0]
                if room in rooms and other in rooms and other != room and not is_test(name):
                    between[folder][room].add(other)
                    if other not in rooms[room] and "all" not in rooms[room]:
                        self.problems.append(
                            f"{name}:{number}: {folder}/{room}/ may not use {folder}/{other}/ ({include})"
                        )
        for folder, uses in between.items():
            for circle in circles(uses):
                self.problems.append(
                    f"rooms of {folder}/ use each other in a circle: {' → '.join([*circle, circle[0]])}"
                )

    def check_library(self, name, number, folder, include):
        row = self.row(name)
        if row is None or folder == "bus" or is_test(name) or {"all", "bus"} & self.folders[row]:
            return
        for prefix, library in LIBRARIES.items():
            if re.match(prefix + r"(\.hp?p?|/)", include) and library not in self.folders[row]:
                self.problems.append(f"{name}:{number}: {row}/ may not use {library} ({include})")

    # ---- Python
    def check_imports(self):
        python = [name for name in self.files if name.endswith(".py")]
        packages = {os.path.dirname(name) for name in python if name.endswith("/__init__.py")}
        homes = collections.defaultdict(list)  # what can be imported -> where it is
        for name in python:
            folder, base = os.path.split(name)
            if folder not in packages:
                homes[base[:-3]].append(name)
        for package in packages:
            homes[os.path.basename(package)].append(f"{package}/__init__.py")
        uses = collections.defaultdict(set)
        for name in python:
            for number, words, at_once in self.imports_of(name):
                target = self.resolved(name, words, homes, packages)
                if target is None:
                    continue
                owner = target.split("/")[0]
                self.use(name, number, owner, ".".join(words))
                private = [word for word in words if word.startswith("_") and word != "__future__"]
                if private and owner != name.split("/")[0]:
                    self.problems.append(f"{name}:{number}: {private[0]} is {owner}/'s own")
                if at_once and target != name:
                    uses[name].add(target)
        for circle in circles(uses):
            self.problems.append(f"modules import each other in a circle: {' → '.join([*circle, circle[0]])}")

    def imports_of(self, name):
        """(line, words of the name, when the module itself is imported); a relative import begins with a word "." for
        each of its dots."""
        try:
            tree = ast.parse("\n".join(self.lines(name)))
        except SyntaxError as error:
            self.problems.append(f"{name}:{error.lineno}: {error.msg}")
            return
        inside = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            at_once = id(node) not in inside
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name.split("."), at_once) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                head = ["."] * node.level + (node.module.split(".") if node.module else [])
                yield from ((node.lineno, [*head, alias.name], at_once) for alias in node.names)

    def resolved(self, name, words, homes, packages):
        """The tree's file that this import means; None for others' modules."""
        folder = os.path.dirname(name)
        if words[0] == ".":
            dots = words.count(".")
            for _ in range(dots - 1):
                folder = os.path.dirname(folder)
            return self.within(folder, words[dots:])
        found = homes.get(words[0], [])
        here = f"{folder}/{words[0]}.py"
        if folder not in packages and here in found and here != name:
            return here
        found = [one for one in found if one != name]
        if words[0] in sys.stdlib_module_names or not found:
            return None
        if len(found) > 1:  # whose folder the file itself puts on its path
            paths = [line for line in self.lines(name) if "sys.path" in line]
            found = [
                one for one in found if any(f'"{os.path.basename(os.path.dirname(one))}"' in line for line in paths)
            ] or found
        package = os.path.dirname(found[0])
        return self.within(package, words[1:]) if package in packages else found[0]

    def within(self, package, words):
        """The module of a package that `words` begin with; else the package itself."""
        if words and f"{package}/{words[0]}.py" in self.files:
            return f"{package}/{words[0]}.py"
        if words and f"{package}/{words[0]}/__init__.py" in self.files:
            return self.within(f"{package}/{words[0]}", words[1:])
        return f"{package}/__init__.py"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    tree = Tree(root)
    if len(tree.folders) < 2:
        sys.exit("check-folders: ARCHITECTURE.md's folder table was not found")
    problems = tree.check()
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"check-folders: {len(problems)} problems")
    print("folders: ok")


if __name__ == "__main__":
    main()
