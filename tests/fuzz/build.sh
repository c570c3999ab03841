#!/usr/bin/env bash
# OSS-Fuzz: builds the targets with its compiler flags ($CC, $CXX, $CFLAGS, $CXXFLAGS, $LIB_FUZZING_ENGINE) into $OUT.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
work=${WORK:-$source/build}/oss-fuzz
cmake -S "$source" -B "$work" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" \
  -DFREERIDE_FUZZ=ON -DFREERIDE_BUILD_TESTS=OFF
cmake --build "$work" --target fuzz_targets
mkdir -p "$OUT"
cp "$work"/bin/fuzz_* "$source"/tests/fuzz/fuzz_*_seed_corpus.zip "$OUT/"
