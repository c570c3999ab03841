#!/usr/bin/env bash
# Packs what an installation needs into one relocatable folder: programs, bwrap, hook library, Python package, plugins and every
# shared library but libc's and the driver's. Runs on glibc 2.34 or later, with nothing installed.
# Usage: make-dist.sh BUILD OUT [test]    "test" adds the GPU tests, their side tasks and what measures side tasks
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 out=$2
rm -rf "$out" && mkdir -p "$out"/{bin,lib,plugins,python/freeride,start,slurm,examples}

cmake --install "$build" --prefix "$out/tmp" --strip >/dev/null
rm "$out/tmp/bin/freeride"  # a script, which ldd does not take: at the end
cp "$out"/tmp/bin/* "$out/bin/"
cp "$(command -v bwrap)" "$out/bin/"
find "$out/tmp" -path '*/freeride/plugins/*.so' -exec cp {} "$out/plugins/" \;
# LibTorch comes from the host's Python, and what uses it must have been built with that one: sources, and a line to compile them.
rm -f "$out"/plugins/{resnet18,resnet50,vgg19}.so
mkdir -p "$out"/{plugins/resnet,include/freeride}
cp plugins/resnet/{resnet18,resnet50,vgg19,training,models}.cpp plugins/resnet/{training,models,version,memory}.hpp "$out/plugins/resnet/"
cp plugin-api/include/freeride/plugin.h* "$out/include/freeride/"
cp -r plugins/python "$out/plugins/"
cp plugins/generate/generate.py plugins/evaluate/evaluate.py "$out/plugins/"
cp hooks/python/freeride/*.py "$out/python/freeride/"
mkdir "$out/python/freeride/_start"
cp hooks/python/freeride/_start/sitecustomize.py "$out/python/freeride/_start/"
cp hooks/python/freeride/_start/sitecustomize.py "$out/start/"  # beside the package, as in a Debian one
cp hooks/examples/{train_gpt,grpo,jax_loop}.py "$out/examples/"
cp containers/slurm/{prolog,epilog,empty-node,own-side-tasks.sbatch} "$out/slurm/"
cp plugins/resnet/compile.sh "$out/plugins/resnet/"
mkdir "$out"/{systemd,completion}
cp "$out"/tmp/lib/systemd/system/freeride* "$out/systemd/"
find "$out/tmp/share/bash-completion" -type f -exec cp {} "$out/completion/" \; 2>/dev/null || true
find "$out/tmp" -name freeride.toml -exec cp {} "$out/" \;
cp LICENSE "$out/"
for library in hook cudart; do  # where the package looks first
  cp "$(find "$out/tmp" -name libfreeride_$library.so | head -1)" "$out/python/freeride/"
done
rm -rf "$out/tmp"
if [ "${3:-}" = test ]; then
  mkdir -p "$out/test/rig"
  install -m 644 tests/gpu/*.py "$out/test/"
  find tests/rig -name '*.py' ! -name 'test_*' -exec install -m 644 -t "$out/test/rig" {} +
  [ ! -f "$build/bin/bench-side-task" ] || { cp "$build/bin/bench-side-task" "$out/bin/" && strip "$out/bin/bench-side-task"; }
  for plugin in gpu_task gpu_cheat counter; do
    [ -f "$build/test-plugins/$plugin.so" ] || continue
    cp "$build/test-plugins/$plugin.so" "$out/test/" && strip --strip-unneeded "$out/test/$plugin.so"
  done
fi

# libc, its loader and what belongs to it come from the host, and so does everything of the driver's.
theirs='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nss_.*|anl|BrokenLocale|thread_db|mvec)|libcuda|libnvidia.*)\.so'
find "$out" -type f \( -path "$out/bin/*" -o -name '*.so*' \) -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  { grep -vE "/${theirs#^}" || true; } > "$out/carried"
xargs -a "$out/carried" cp -L -t "$out/lib/"
# Whose they are, and what is compiled into the programs.
scripts/copy-licenses.sh "$out/licenses" $(cat "$out/carried") "$(command -v bwrap)"
rm "$out/carried"
chmod u+w "$out"/lib/* "$out"/bin/*
strip --strip-unneeded "$out"/lib/*.so* 2>/dev/null || true
# Debian's C++ runtime asks for a newer libc than its symbols' users do.
cp "$build/lib/libfreeride_old_glibc.so" "$out/lib/" && strip --strip-unneeded "$out/lib/libfreeride_old_glibc.so"
for library in libstdc++.so.6 libgcc_s.so.1; do
  scripts/lower-glibc.py "$out/lib/$library"
  patchelf --add-needed libfreeride_old_glibc.so "$out/lib/$library"
done
# RPATH, not RUNPATH: a program's holds for the libraries that its libraries need, and for those of plugins.
for program in "$out"/bin/*; do
  head -c 4 "$program" | grep -q ELF && patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$program"
done
for file in "$out"/lib/*.so*; do patchelf --force-rpath --set-rpath '$ORIGIN' "$file"; done
for plugin in "$out"/plugins/*.so "$out"/test/*.so; do
  [ -f "$plugin" ] && patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$plugin"
done
# As it is: a program under it has nothing of ours but this, and its own libraries must not be looked for here.
cp "$(find "$build/lib" -name libfreeride_shim.so | head -1)" "$out/lib/" && strip --strip-unneeded "$out/lib/libfreeride_shim.so"
if [ "${3:-}" = test ] && [ -f "$build/lib/libswitched_cuda.so" ]; then cp "$build/lib/libswitched_cuda.so" "$out/lib/"; fi
cp hooks/freeride "$out/bin/"
scripts/check-dist.sh "$out"
