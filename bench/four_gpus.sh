#!/bin/bash
# What is to be measured on a host with four GPUs, in parts of less than ten minutes each:
#
#     bench/four_gpus.sh DIST OUT hook          # the hook alone, both waits; then ResNet18 and PageRank in a real pipeline
#     bench/four_gpus.sh DIST OUT checks        # losses and waits of all schedules, two pipelines, a killed rank, two hosts of two GPUs
#     bench/four_gpus.sh DIST OUT data          # two pipelines of two stages that share their gradients: losses, the hook's cost, ResNet18 and PageRank
#     bench/four_gpus.sh DIST OUT tensor        # the same for one pipeline of two stages, each shared by two GPUs
#     bench/four_gpus.sh DIST OUT tables        # the paper's rows with a budget of 0.5 % again
#     ONLY='budget(0.25|1.0)$' bench/four_gpus.sh DIST OUT tables     # the other budgets, and the imperative interface
#     ONLY='6B|Interleaved' bench/four_gpus.sh DIST OUT tables        # another model and schedule
#
# DIST: make dist's folder. OUT: where the records go; tables.json there is continued, else bench/results/tables-h200.json.
# Each part prints what it has found and goes on behind what fails; the exit code is the number of commands that failed.
set -u
dist=$1 out=$2 part=$3
here=$(cd "$(dirname "$0")/.." && pwd)
tree="--bin $dist/bin --plugins $dist/plugins --python $dist/python"
failed=0
declare -A names
mkdir -p "$out"

within() {  # SECONDS COMMAND...: SIGTERM, after which each of them writes down what it has
  local seconds=$1 begin=$SECONDS
  shift
  timeout -s TERM -k 20 "$seconds" python3 "$@" || failed=$((failed + 1))
  echo "== $((SECONDS - begin)) s: $1"
}

if [ "$part" != checks ] && [ ! -e "$dist/plugins/resnet18.so" ]; then  # for the torch of this machine
  "$dist/plugins/resnet/compile.sh" "$dist/plugins" >/dev/null || failed=$((failed + 1))
fi
case $part in
  hook)
    within 170 "$here/bench/hook_gpu.py" --python "$dist/python" --out "$out/hook-4.json" --watchdog 160
    # shellcheck disable=SC2086
    within 330 "$here/bench/hook_gpu_harvest.py" $tree --synchronise --blocks 0 --block-ms 1300 --warm-up 12 \
      --seconds resnet18=110,pagerank=90 --watchdog 320 --out "$out/harvest-4.json"
    ;;
  checks)
    within 500 "$here/tests/gpu/hook_checks.py" --python "$dist/python" --out "$out/checks-4.json"
    ;;
  data | tensor)
    names=([data]="two pipelines" [tensor]="tensor parallelism")
    within 110 "$here/tests/gpu/hook_checks.py" --python "$dist/python" --only "${names[$part]}" --out "$out/checks-$part.json"
    # shellcheck disable=SC2086
    within 420 "$here/bench/hook_gpu_harvest.py" $tree --synchronise --other "$part" --blocks 60 --block-ms 1300 --warm-up 12 \
      --seconds resnet18=90,pagerank=80 --watchdog 400 --out "$out/harvest-$part.json"
    ;;
  tables)
    [ -f "$out/tables.json" ] || cp "$here/bench/results/tables-h200.json" "$out/tables.json"
    within 540 "$here/bench/tables/run.py" --scale gpu --programs "$dist/bin" --plugins "$dist/plugins" --hooks "$dist/python" \
      --out "$out/tables.json" --resume --again --limit-s "${LIMIT_S:-430}" --only "${ONLY:-budget0.5$}"
    ;;
  *)
    echo "$0: hook, checks, data, tensor or tables" >&2
    exit 64
    ;;
esac
exit "$failed"
