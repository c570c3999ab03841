#!/usr/bin/env bash
# Packs everything into one wheel: the Python package `freeride`, and in its folder _tree what make-dist.sh packs: programs, plugins and the
# libraries that they need. For hosts with glibc 2.34 or later, which auditwheel and check-dist.sh look at. Usage: make-wheel.sh BUILD OUT
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: make-wheel.sh BUILD OUT" >&2; exit 2; }
cd "$(dirname "$0")/.."
build=$(realpath "$1") out=$(realpath -m "$2") tools=${XDG_CACHE_HOME:-$HOME/.cache}/freeride/wheel-tools
list=scripts/wheel-requirements.txt

mkdir -p "$(dirname "$tools")"
exec 9>"$tools.lock"
flock 9  # somebody else may be making it
if ! cmp -s "$list" "$tools/made-from.txt"; then
  /usr/bin/python3 -m venv --clear "$tools"
  "$tools/bin/pip" --quiet --disable-pip-version-check install -r "$list"
  cp "$list" "$tools/made-from.txt"
fi
exec 9>&-

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
scripts/make-dist.sh "$build" "$staging/dist" >&2
mv "$staging/dist/python/freeride" "$staging/freeride"
rm -r "$staging/dist/python" "$staging/dist/start" "$staging/dist/bin/freeride"  # the package has its own start, pip makes the command
cp hooks/python/pyproject.toml LICENSE "$staging/"
# Python files for any Python 3, libraries for this platform: setuptools knows no words for that.
cat > "$staging/setup.py" <<'SETUP'
from setuptools import Distribution, setup

Distribution.has_ext_modules = lambda self: True
setup()
SETUP
cd "$staging"
"$tools/bin/python" -m build --quiet --no-isolation --wheel --outdir made . >&2
wheel=$("$tools/bin/wheel" tags --remove --python-tag py3 --abi-tag none --platform-tag "manylinux_2_34_$(uname -m)" made/*.whl)
# The tree is no Python package, and its files keep their permissions: no work for setuptools.
"$tools/bin/wheel" unpack --dest unpacked "made/$wheel" >&2
folder=$(echo unpacked/*)
mv dist "$folder/freeride/_tree"
"$tools/bin/wheel" pack --dest-dir made "$folder" >&2
# auditwheel's own tag would ask for a C++ runtime of the host, which is in the tree. `repair` would copy nothing.
"$tools/bin/auditwheel" show --json "made/$wheel" 2>/dev/null | "$tools/bin/python" -c '
import json, re, sys

found = json.load(sys.stdin)
if found["external_libs"]:
    sys.exit("make-wheel.sh: not in the wheel, nor on every host: %s" % ", ".join(sorted(found["external_libs"])))
needs = {version for versions in found["versioned_symbols"].values() for version in versions}
newer = [need for need in needs if re.match(r"GLIBC_2\.\d", need) and int(need.split(".")[1]) > 34]
if newer:
    sys.exit("make-wheel.sh: newer than the tag of the wheel: %s" % ", ".join(newer))'
mkdir -p "$out"
rm -f "$out"/freeride_bubbles-*.whl
cp "made/$wheel" "$out/"
echo "$out/$wheel"
