#!/usr/bin/env bash
# clang-tidy over every source of ours, tests aside, that the given build compiles. Usage: check-tidy.sh BUILD_DIR
# A file that was clean, with everything it includes unchanged, is not looked at again: stamps are kept by content in BUILD_DIR/tidy.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: check-tidy.sh BUILD_DIR}
mkdir -p "$build/tidy"
headers=$(git ls-files -z '*.h' '*.hpp' .clang-tidy | xargs -0 cat | sha256sum | cut -d' ' -f1)
export build headers
check_one() {
  stamp="$build/tidy/$( (echo "$headers"; cat "$1") | sha256sum | cut -d' ' -f1)"
  [ -e "$stamp" ] && return 0
  out=$(clang-tidy --quiet -p "$build" "$1" 2>/dev/null) || { printf '%s\n' "$out"; return 1; }
  touch "$stamp"
}
export -f check_one
/usr/bin/python3 - "$build" <<'PY' | xargs -0 -P "$(nproc)" -n 1 bash -c 'check_one "$0"'
import json, os, sys
root = os.getcwd()
files = {os.path.realpath(entry["file"]) for entry in json.load(open(os.path.join(sys.argv[1], "compile_commands.json")))}
ours = sorted(f for f in files if f.startswith(root + "/") and not f.startswith(root + "/build/") and f.endswith(".cpp")
              and "test" not in os.path.basename(f)
              and not f.startswith(root + "/plugins/resnet/"))  # LibTorch 1.13's headers are none that clang 14 can parse
sys.stdout.write("".join(os.path.relpath(f, root) + "\0" for f in ours))
PY
echo "tidy: ok"
