#!/usr/bin/env bash
# Makes the root file system of FreeRide's image out of a build and this machine's libraries, so that no registry is needed.
# Usage: make-root.sh BUILD_FOLDER CONTEXT_FOLDER; then: docker build -t freeride CONTEXT_FOLDER
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: make-root.sh BUILD_FOLDER CONTEXT_FOLDER" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
build=$1 context=$2

for program in manager node worker runner ctl web recorder; do
  [ -x "$build/bin/freeride-$program" ] || { echo "make-root.sh: $build holds no freeride-$program; run make build" >&2; exit 1; }
done
bwrap=$(command -v bwrap) || { echo "make-root.sh: bubblewrap is not installed, and the image needs it; apt-get install bubblewrap" >&2; exit 1; }

rm -rf "$context/root"
mkdir -p "$context/root"
root=$(cd "$context/root" && pwd)
mkdir -p "$root"/{usr/bin,usr/lib,usr/lib64,etc/freeride,proc,sys,dev,run/freeride,var/lib/freeride}
mkdir -m 1777 "$root/tmp"
for name in bin lib lib64; do ln -s "usr/$name" "$root/$name"; done  # Debian's layout: loader and libraries keep their paths

for component in Unspecified plugins hook; do
  cmake --install "$build" --prefix "$root/usr" --component "$component" --strip >/dev/null
done
rm -rf "$root/usr/include"
cp -L "$bwrap" "$root/usr/bin/bwrap"
# With Kubernetes a pod brings the profile to the host, and the hook to a training, by a copy: kubernetes/.
cp -L /bin/cp "$root/usr/bin/cp"
cp "$here/worker-container.seccomp.json" "$root/usr/share/freeride/"

# Parts of glibc that are empty today. A GPU's driver and MPS, which come in from the host, are linked with them.
libc=$(ldd /bin/cp | grep -o '/[^ ]*/libc\.so\.6')
for name in libdl.so.2 libpthread.so.0 librt.so.1; do
  install -D -m 0755 "$(dirname "$libc")/$name" "$root$(dirname "$libc")/$name"
done

# What the programs and plugins load, and the loader itself, under the names they are asked for.
# Scripts load nothing, and ldd fails for them.
{ find "$root/usr" -type f \( -perm -u+x -o -name '*.so*' \) -exec ldd {} + 2>/dev/null || true; } |
  grep -o '/[^ ]*\.so[^ ]*' | grep -v "^$root" | sort -u | while read -r library; do
  install -D -m 0755 "$library" "$root$library"
done

echo 'root:x:0:0:root:/:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin' >"$root/etc/passwd"
echo 'root:x:0:
nogroup:x:65534:' >"$root/etc/group"
/sbin/ldconfig -r "$root"
cp "$here/Dockerfile" "$context/Dockerfile"
printf '*\n!root\n' >"$context/.dockerignore"
