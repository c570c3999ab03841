#!/usr/bin/env python3
"""clang-tidy over every source of ours, tests aside, that the given build has compiled. Usage: check-tidy.py BUILD_DIR [STAMPS_DIR]

A file that was clean is not looked at again until it, something of ours that it includes, or .clang-tidy changes: stamps are kept by content in
STAMPS_DIR (BUILD_DIR/tidy), which may be shared between checkouts. Exit code 1: findings, printed as they come.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# LibTorch 1.13's headers are none that clang 14 can parse.
LEFT_OUT = (ROOT / "plugins/resnet",)


def included(build):
    """Object file to what of ours it was made from."""
    text = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    files, target = {}, None
    for line in text.splitlines():
        if line.startswith("    "):
            path = (build / line.strip()).resolve()
            if path.is_relative_to(ROOT):
                files[target].append(path)
        elif ": #deps" in line:
            target = line.split(":")[0]
            files[target] = []
    return files


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.strip().splitlines()[0])
    build = pathlib.Path(sys.argv[1]).resolve()
    stamps = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else build / "tidy").expanduser().resolve()
    stamps.mkdir(parents=True, exist_ok=True)
    made_from, sources = included(build), {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        ours = source.suffix == ".cpp" and source.is_relative_to(ROOT) and not source.is_relative_to(build.parent) and "test" not in source.name
        if ours and not any(source.is_relative_to(folder) for folder in LEFT_OUT):
            words = entry["command"].split()
            made = made_from.get(words[words.index("-o") + 1], [])  # empty: not compiled, so looked at by itself
            sources[source] = sorted({*sources.get(source, ()), *made, source, ROOT / ".clang-tidy"})

    def check(source):
        content = hashlib.sha256(str(source.relative_to(ROOT)).encode())
        for path in sources[source]:
            content.update(path.read_bytes() if path.exists() else b"-")
        stamp = stamps / content.hexdigest()
        if stamp.exists():
            return None
        done = subprocess.run(["clang-tidy", "--quiet", "-p", build, source], capture_output=True, text=True, cwd=ROOT, check=False)
        if done.returncode == 0:
            stamp.touch()
        else:
            print(done.stdout.strip() or done.stderr.strip(), flush=True)
        return done.returncode

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = list(pool.map(check, sources))
    looked_at, bad = sum(code is not None for code in codes), sum(bool(code) for code in codes)
    print(f"tidy: {bad or 'no'} of {len(codes)} files with findings; {looked_at} looked at, the others unchanged since they were clean")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
