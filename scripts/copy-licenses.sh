#!/usr/bin/env bash
# Copies the licences of what is packed: of the Debian packages of the files named, of the libraries that are compiled into the
# programs, and the texts that those refer to. Usage: copy-licenses.sh OUT FILE...
set -euo pipefail
out=$1 && shift
mkdir -p "$out"
inside="libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libmsgpack-cxx-dev cppzmq-dev libboost-dev libspdlog-dev libcpp-httplib-dev prometheus-cpp-dev"

package_of() {  # /lib is /usr/lib, but the file lists of Debian 12 have both
  { dpkg -S "$(realpath "$1")" || dpkg -S "/usr$1" || dpkg -S "${1#/usr}" || dpkg -S "$1" || dpkg -S "*/$(basename "$(realpath "$1")")"; } 2>/dev/null |
    head -1 | cut -d: -f1
}
packages=$inside
for file in "$@"; do
  package=$(package_of "$file")
  [ -n "$package" ] || { echo "copy-licenses.sh: no package has $file, so nothing says under which licence it is" >&2; exit 1; }
  packages+=" $package"
done
for package in $(tr ' ' '\n' <<<"$packages" | sort -u); do
  folder=/usr/share/doc/$package
  [ -e "$folder/copyright" ] || continue  # a library that is not installed is not compiled in
  cp -L "$folder/copyright" "$out/$package"
done
for text in $(grep -ohE '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$out"/* | sort -u); do
  [ ! -e "$text" ] || cp -L "$text" "$out/$(basename "$text").txt"
done
# nvcc has no text of it in every installation.
cat > "$out/cuda-runtime" <<'TEXT'
The plugins that compute on GPUs contain NVIDIA's CUDA runtime (libcudart_static), which may be distributed with programs that use it:
attachment A of the CUDA Toolkit's End User License Agreement, https://docs.nvidia.com/cuda/eula/
TEXT
