#!/usr/bin/env bash
# Runs a packed folder in a root that holds nothing but libc: every program starts, a plugin keeps the contract, a manager answers.
# First of all no file in it needs a glibc newer than 2.34.
# Usage: check-dist.sh FOLDER. Needs user namespaces, or root.
set -euo pipefail
dist=$(realpath "$1")
newest=34
too_new=$(find "$dist" -type f | while read -r file; do
  head -c 4 "$file" | grep -q ELF || continue
  objdump -T "$file" | sed -nE 's/^.*\*UND\*.*\(GLIBC_2\.([0-9]+)[0-9.]*\) *(.*)$/\1 \2/p' |
    awk -v newest=$newest -v file="${file#"$dist/"}" '$1 > newest {print "  " file " needs " $2 "@GLIBC_2." $1}'
done)
[ -z "$too_new" ] || { echo "check-dist.sh: what is packed must run with glibc 2.$newest:" >&2; echo "$too_new" >&2; exit 1; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{lib64,tmp,opt,lib/x86_64-linux-gnu}
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
for name in c m dl rt pthread resolv; do cp -L "/lib/x86_64-linux-gnu/lib$name.so."* "$root/lib/x86_64-linux-gnu/"; done
cp -r "$dist" "$root/opt/freeride"
within=(timeout 60 "$dist/bin/bwrap" --bind "$root" / --proc /proc --dev /dev --die-with-parent)
inside() { "${within[@]}" "$@"; }
for program in worker manager node ctl runner recorder web; do inside "/opt/freeride/bin/freeride-$program" --help >/dev/null; done
inside /opt/freeride/bin/bwrap --version >/dev/null
# Its parts find each other: the worker its bwrap, freeride-ctl the Python package.
{ inside /opt/freeride/bin/freeride-ctl doctor || true; } >"$root/doctor"
grep -q 'bubblewrap  *bubblewrap [0-9]' "$root/doctor" || { echo "check-dist.sh: the packed worker does not see its bwrap" >&2; cat "$root/doctor" >&2; exit 1; }
[ "$(inside /opt/freeride/bin/freeride-ctl python-path)" = /opt/freeride/python ]
# own-side-tasks.sbatch hooks a training by what lies beside that package.
[ -f "$dist/start/sitecustomize.py" ] || { echo "check-dist.sh: no start/sitecustomize.py beside the package" >&2; exit 1; }
for plugin in "$dist"/plugins/*.so; do
  inside /opt/freeride/bin/freeride-runner describe "/opt/freeride/plugins/$(basename "$plugin")" >/dev/null
done
for plugin in "$dist"/test/*.so; do
  [ ! -f "$plugin" ] || inside /opt/freeride/bin/freeride-runner describe "/opt/freeride/test/$(basename "$plugin")" >/dev/null
done
# Not by `inside`: $! would be a shell's number, and the manager would be left running.
"${within[@]}" /opt/freeride/bin/freeride-manager --run-dir /tmp/run --state-dir /tmp/state 2>"$root/manager.log" &
manager=$!
trap 'kill $manager 2>/dev/null; wait $manager || true; rm -rf "$root"' EXIT
for _ in $(seq 100); do
  if inside /opt/freeride/bin/freeride-ctl --run-dir /tmp/run status >/dev/null 2>&1; then answered=1 && break; fi
  sleep 0.1
done
[ "${answered:-}" = 1 ] || { echo "check-dist.sh: the packed manager does not answer" >&2; cat "$root/manager.log" >&2; exit 1; }
echo "dist: $(du -sm "$dist" | cut -f1) MiB in $dist, runs with libc alone"
