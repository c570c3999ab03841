#!/usr/bin/env bash
# Packs what a trainer needs into one wheel: the Python package `freeride` with its two libraries, which need nothing but libc. Its platform tag is
# the oldest manylinux that auditwheel finds to hold for them. Usage: make-wheel.sh BUILD OUT
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
cp hooks/python/pyproject.toml LICENSE "$staging/"
mkdir -p "$staging/freeride/_start"
cp hooks/python/freeride/*.py "$staging/freeride/"
cp hooks/python/freeride/_start/*.py "$staging/freeride/_start/"
for library in hook cudart; do
  strip -o "$staging/freeride/libfreeride_$library.so" "$build/lib/libfreeride_$library.so"
done
# Python files for any Python 3, libraries for this platform: setuptools knows no words for that.
cat > "$staging/setup.py" <<'SETUP'
from setuptools import Distribution, setup

Distribution.has_ext_modules = lambda self: True
setup()
SETUP
(cd "$staging" && "$tools/bin/python" -m build --quiet --no-isolation --wheel --outdir "$staging/made" . >&2)
wheel=$("$tools/bin/wheel" tags --remove --python-tag py3 --abi-tag none "$staging"/made/*.whl)
# The last line of what it says; `repair` would copy nothing, and want patchelf for that.
platform=$(cd "$staging/made" && "$tools/bin/auditwheel" show "$wheel" | grep -oE 'manylinux_[0-9]+_[0-9]+_[a-z0-9_]+' | head -1)
[ -n "$platform" ] || { echo "make-wheel.sh: auditwheel finds no manylinux tag for $wheel: what do its libraries need?" >&2; exit 1; }
mkdir -p "$out"
rm -f "$out"/freeride_bubbles-*.whl
wheel=$(cd "$staging/made" && "$tools/bin/wheel" tags --remove --platform-tag "$platform" "$wheel")
cp "$staging/made/$wheel" "$out/"
echo "$out/$wheel"
