#!/usr/bin/python3
"""Holds the code to ARCHITECTURE.md's folder table: which folder may include which, and which has a README.

The table's rows read `| `folder/` | what lives there | may use |`; "all" in the last column lifts the rule.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OWNERS = {  # include prefix -> folder
    "freeride/base/": "base", "freeride/policy/": "policy", "freeride/bus/": "bus", "freeride/pages": "pages",
    "freeride/plugin": "plugin-api", "freeride/hook": "hooks", "freeride/worker/": "worker", "freeride/seccomp": "containers", "freeride/manager/": "manager",
}
LIBRARIES = {"zmq": "ZeroMQ", "msgpack": "MessagePack"}


def table():
    rows = {}
    for line in open(os.path.join(ROOT, "ARCHITECTURE.md"), encoding="utf-8"):
        match = re.match(r"\|\s*`([\w/-]+)/`\s*\|(.*)\|([^|]*)\|\s*$", line)
        if match:
            rows[match.group(1)] = {name.strip(" `\n/") for name in match.group(3).split(",")}
    return rows


def main():
    rows = table()
    if len(rows) < 10:
        sys.exit("check-folders: ARCHITECTURE.md's folder table was not found")
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    problems = []
    for folder in sorted({f.split("/")[0] for f in files if "/" in f and not f.startswith(".")}):
        if folder not in rows:
            problems.append(f"{folder}/ is not in ARCHITECTURE.md's table")
        elif f"{folder}/README.md" not in files:
            problems.append(f"{folder}/ has no README.md")
    for name in files:
        if not name.endswith((".c", ".h", ".cpp", ".hpp")):
            continue
        folder = name.split("/")[0]
        # The longest row that holds the file: the longest wins.
        row = max((r for r in rows if name.startswith(r + "/")), key=len, default=None)
        if row is None or "all" in rows[row]:
            continue
        is_test = name.endswith("_test.cpp")
        for number, line in enumerate(open(os.path.join(ROOT, name), encoding="utf-8"), 1):
            match = re.match(r'\s*#\s*include\s+[<"]([^>"]+)[>"]', line)
            if not match:
                continue
            include = match.group(1)
            for prefix, owner in OWNERS.items():
                if include.startswith(prefix) and owner != folder and owner not in rows[row] and not is_test:
                    problems.append(f"{name}:{number}: {row}/ may not use {owner}/ ({include})")
            for prefix, library in LIBRARIES.items():
                if re.match(prefix + r"(\.hp?p?|/)", include) and library not in rows[row] and folder != "bus" and not is_test:
                    if "bus" not in rows[row]:
                        problems.append(f"{name}:{number}: {row}/ may not use {library} ({include})")
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"check-folders: {len(problems)} problems")
    print("folders: ok")


if __name__ == "__main__":
    main()
