#!/usr/bin/env bash
# Installs Debian packages that are missing, and only those. Usage: install-deps.sh build|demo|figures|plugins|test|bench|check|docker|dist|hosts|slurm|installed|fuzz|frameworks|wheel|systems|kubernetes ...
set -euo pipefail

build="build-essential python3 cmake ninja-build ccache pkg-config libzmq3-dev cppzmq-dev libmsgpack-cxx-dev libboost-dev
       libspdlog-dev libcli11-dev libtomlplusplus-dev libsqlite3-dev libssl-dev libseccomp-dev libzstd-dev zlib1g-dev bubblewrap nlohmann-json3-dev libjpeg-dev libpng-dev catch2 libcpp-httplib-dev prometheus-cpp-dev"
figures="python3-matplotlib python3-scipy python3-pandas"  # what benchmarks come to
training="python3 python3-torch libopenblas0-pthread python3-numpy python3-zmq python3-msgpack"
plugins="libtorch-dev"  # without it: no resnet18, resnet50, vgg19

look="chromium chromium-driver python3-selenium prometheus"  # the page in a browser, metrics and alerts in Prometheus

sizes="hwloc-nox openmpi-bin python3-mpi4py"  # libraries that size themselves by what a sandbox shows

packages=""
for set in "${@:-demo}"; do
  case "$set" in
    build) packages+=" $build" ;;
    demo)  packages+=" $build $training" ;;
    figures) packages+=" $figures" ;;
    plugins) packages+=" $build $plugins" ;;
    test)  packages+=" $build $training $plugins $look $figures python3-pytest python3-venv patchelf groff-base ffmpeg $sizes" ;;
    bench) packages+=" $build $training libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc" ;;
    check) packages+=" $build clang-format clang-tidy git python3-venv" ;;
    dist)  packages+=" $build bubblewrap patchelf" ;;
    hosts) packages+=" $build $training python3-pytest iproute2 util-linux" ;;
    slurm) packages+=" $build slurmctld slurmd slurm-client munge libslurm-dev iproute2 util-linux" ;;
    installed) packages+=" $build python3 python3-pytest python3-msgpack python3-zmq systemd util-linux dpkg" ;;
    fuzz) packages+=" $build python3 clang" ;;
    frameworks) packages+=" $build python3 python3-venv" ;;
    systems) packages+=" debootstrap util-linux" ;;
    wheel) packages+=" $build patchelf python3 python3-venv" ;;
    docker) packages+=" $build $training python3-matplotlib bubblewrap docker.io python3-yaml systemd" ;;
    kubernetes) packages+=" $build $training bubblewrap docker.io python3-yaml python3-pytest python3-venv util-linux" ;;
    *) echo "install-deps.sh: unknown set '$set'; known: build, demo, figures, plugins, test, bench, check, docker, dist, hosts, slurm, installed, fuzz, frameworks, wheel, systems, kubernetes" >&2; exit 2 ;;
  esac
done

missing=""
for package in $packages; do
  status=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [ "${status:0:2}" = "ii" ] || missing+=" $package"
done
missing=$(tr ' ' '\n' <<<"$missing" | sort -u | tr '\n' ' ')
[ -n "${missing// /}" ] || exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-deps.sh: needs root or sudo to install:$missing" >&2; exit 1; }
  sudo="sudo"
fi
echo "installing, which takes some minutes: $missing"
apt=(apt-get install -y --no-install-recommends)
install() { $sudo env DEBIAN_FRONTEND=noninteractive "${apt[@]}" "$@" $missing; }
$sudo apt-get update -qq
# Where packages are only added, the disk is waited for once instead of at every file: half of the time. What the system already
# needs is exchanged with dpkg's usual care.
if "${apt[@]}" --simulate $missing | awk '/^Inst [^ ]+ \[/ || /^Remv/ { exit 1 }'; then
  apt+=(-o Dpkg::Options::=--force-unsafe-io)
  trap sync EXIT
fi
if [ -t 2 ]; then  # somebody looks on: apt's own progress
  install >&2
else  # a log is kept short
  install -qq >/dev/null
fi
echo "installed"
