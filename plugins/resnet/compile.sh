#!/usr/bin/env bash
# Compiles resnet18.so, resnet50.so and vgg19.so for the torch of a Python, where there is no build tree: from this folder's sources
# and the two headers of plugin-api. A minute on four processors.
# Usage: compile.sh OUT [PYTHON]    OUT: the folder for them, a worker's plugin folder for example. PYTHON: python3, or the one of --python
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# Usage: /usage: /p' "$0" >&2; exit 64; }
mkdir -p "$1"
out=$(realpath "$1") python=${2:-python3}
cd "$(dirname "$(realpath "$0")")"
read -r torch abi < <("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__), int(torch.compiled_with_cxx11_abi()))') ||
  { echo "compile.sh: $python has no torch; name the Python that has it" >&2; exit 1; }
for include in ../../include ../../plugin-api/include; do [ ! -f $include/freeride/plugin.hpp ] || api=$include; done
: "${api:?compile.sh: freeride/plugin.hpp is neither in ../../include nor in ../../plugin-api/include}"
# A step's pieces are CUDA graphs where torch has CUDA and its headers are found, all of them: some of PyPI's packages have half.
graphs=()
if [ -e "$torch/lib/libtorch_cuda.so" ]; then
  for include in "$torch"/../nvidia/*/include "${CUDA_HOME:-/usr/local/cuda}/include"; do
    [ ! -f "$include/cuda_runtime_api.h" ] || [ ! -f "$include/crt/host_config.h" ] || { graphs=(-DTRAINING_WITH_CUDA -isystem "$include"); break; }
  done
fi
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
pids=()
for source in training models resnet18 resnet50 vgg19; do
  ${CXX:-g++} -c -std=c++17 -O2 -fPIC -fvisibility=hidden -D_GLIBCXX_USE_CXX11_ABI="$abi" -I "$api" \
    "${graphs[@]}" -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" $source.cpp -o "$parts/$source.o" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
cuda=()
[ ! -e "$torch/lib/libtorch_cuda.so" ] || cuda=(-ltorch_cuda -lc10_cuda)
for model in resnet18 resnet50 vgg19; do
  ${CXX:-g++} -shared "$parts"/{$model,training,models}.o -o "$parts/$model.so" -L "$torch/lib" -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 \
    "${cuda[@]}" -Wl,-rpath,"$torch/lib"
  mv "$parts/$model.so" "$out/$model.so"
  echo "$out/$model.so"
done
