#!/usr/bin/env bash
# Form and rules of the Python (ruff.toml). Debian 12 has no ruff: it comes from PyPI, in this version, into a folder of its own in the cache.
# Usage: ruff.sh          says what is wrong; exit code 1 if anything is
#        ruff.sh fix      mends what can be mended
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.14.0
home="${XDG_CACHE_HOME:-$HOME/.cache}/freeride/ruff-$version"
if [ ! -x "$home/bin/ruff" ]; then
  /usr/bin/python3 -m venv "$home"
  "$home/bin/pip" install --quiet --disable-pip-version-check "ruff==$version"
fi
case "${1:-check}" in
  check) "$home/bin/ruff" format --quiet --diff . && "$home/bin/ruff" check --quiet . && echo "python: ok" ;;
  fix)   "$home/bin/ruff" check --quiet --fix . || true; "$home/bin/ruff" format --quiet . ;;
  *)     echo "usage: ruff.sh [check|fix]" >&2; exit 2 ;;
esac
