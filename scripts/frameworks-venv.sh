#!/usr/bin/env bash
# Makes the virtual environment with the frameworks that `make test-frameworks` trains with, unless it is there already, and prints their versions. About 3.6 GB and three
# minutes; pip's cache makes it faster the next time. Usage: frameworks-venv.sh FOLDER [TORCH ...]
# For each TORCH, as hooks/tests/frameworks/torch-TORCH.txt names it, it makes FOLDER-TORCH, too: another torch, and all else as in FOLDER. 2.5 comes
# before 2.4, which uses its CUDA libraries. "newest": what PyPI has now, looked up each time.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: frameworks-venv.sh FOLDER [TORCH ...]" >&2; exit 2; }
cd "$(dirname "$0")/.."
base=$(realpath -m "$1")
lists=hooks/tests/frameworks
packages=lib/$(/usr/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages

versions() { "$1/bin/pip" list --format=freeze | grep -E '^(torch|deepspeed|megatron-core)==' || true; }
pip() { DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "$folder/bin/pip" --quiet install --no-build-isolation "$@"; }

make_base() {
  pip --no-deps $(grep -E '^(setuptools|wheel)==' "$list")
  pip --no-deps -r <(grep -v '^deepspeed' "$list")
  pip --no-deps -r "$list"  # DeepSpeed asks the installed torch what to build
}

make_other() {
  pip --no-deps -r "$list"
  # Torch looks for CUDA beside itself: 2.4 borrows what 2.5 has.
  if [ "$torch" = 2.4 ]; then ln -sfn "$base-2.5/$packages/nvidia" "$folder/$packages/nvidia"; fi
  echo "$base/$packages" > "$folder/$packages/all-else.pth"
}

# make FOLDER LIST HOW: unless it was made from this list.
make() {
  folder=$1 list=$2
  if ! cmp -s "$list" "$folder/made-from.txt"; then
    if [ -e "$folder" ] && [ ! -e "$folder/pyvenv.cfg" ]; then
      echo "frameworks-venv.sh: $folder exists and is no virtual environment: name another folder" >&2
      exit 1
    fi
    mkdir -p "$(dirname "$folder")"
    exec 9>"$folder.lock"
    flock 9  # somebody else may be making it
    if ! cmp -s "$list" "$folder/made-from.txt"; then
      echo "making $folder (from PyPI)"
      /usr/bin/python3 -m venv --clear "$folder"
      "$3"
      "$folder/bin/python" -c 'import torch'
      cp "$list" "$folder/made-from.txt"
    fi
    exec 9>&-
  fi
  versions "$folder"
}

make "$base" "$lists/requirements.txt" make_base
shift
for torch in "$@"; do
  if [ "$torch" != newest ]; then
    make "$base-$torch" "$lists/torch-$torch.txt" make_other
    continue
  fi
  folder=$base-newest
  [ -e "$folder/pyvenv.cfg" ] || /usr/bin/python3 -m venv "$folder"
  rm -f "$folder/$packages/all-else.pth"  # pip is to see this folder alone
  pip --upgrade torch
  echo "$base/$packages" > "$folder/$packages/all-else.pth"
  versions "$folder"
done
