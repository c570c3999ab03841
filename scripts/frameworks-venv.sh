#!/usr/bin/env bash
# Makes the virtual environment with the frameworks that `make test-frameworks` trains with, unless it is there already, and prints their versions. About 3.6 GB and three
# minutes; pip's cache makes it faster the next time. Usage: frameworks-venv.sh FOLDER
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: frameworks-venv.sh FOLDER" >&2; exit 2; }
cd "$(dirname "$0")/.."
folder=$1
list=hooks/tests/frameworks/requirements.txt
stamp=$folder/made-from.txt

versions() { "$folder/bin/pip" list --format=freeze | grep -E '^(torch|deepspeed|megatron-core)=='; }
if cmp -s "$list" "$stamp"; then versions; exit 0; fi
if [ -e "$folder" ] && [ ! -e "$folder/pyvenv.cfg" ]; then
  echo "frameworks-venv.sh: $folder exists and is no virtual environment: name another folder" >&2
  exit 1
fi
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9  # somebody else may be making it
if cmp -s "$list" "$stamp"; then versions; exit 0; fi

echo "making $folder (torch and DeepSpeed from PyPI)"
/usr/bin/python3 -m venv --clear "$folder"
pip() { DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "$folder/bin/pip" --quiet install --no-deps --no-build-isolation "$@"; }
pip $(grep -E '^(setuptools|wheel)==' "$list")
pip -r <(grep -v '^deepspeed' "$list")
pip -r "$list"  # DeepSpeed asks the installed torch what to build
"$folder/bin/python" -c 'import torch'
versions
cp "$list" "$stamp"
