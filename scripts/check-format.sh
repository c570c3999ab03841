#!/usr/bin/env bash
# Every C and C++ file in git is formatted as .clang-format says; `make format` mends it.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files -z '*.c' '*.h' '*.cpp' '*.hpp' | xargs -0 clang-format --dry-run --Werror
echo "format: ok"
