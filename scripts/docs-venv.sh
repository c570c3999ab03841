#!/usr/bin/env bash
# The tools of the documentation (MkDocs, Material, codespell), which Debian 12 lacks in these versions: from PyPI, in the versions of
# docs-requirements.txt, into a folder of their own in the cache. Prints that folder. Needs the network only when the list has changed.
set -euo pipefail
cd "$(dirname "$0")"
home="${XDG_CACHE_HOME:-$HOME/.cache}/freeride/docs"
mkdir -p "$(dirname "$home")"
exec 9>"$home.lock"
flock 9 # somebody else may be making it
if ! cmp -s docs-requirements.txt "$home/made-from.txt"; then
  /usr/bin/python3 -m venv --clear "$home"
  "$home/bin/pip" install --quiet --disable-pip-version-check -r docs-requirements.txt >&2
  cp docs-requirements.txt "$home/made-from.txt"
fi
echo "$home"
