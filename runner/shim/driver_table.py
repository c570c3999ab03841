#!/usr/bin/env python3
"""Makes src/driver.inc, the table of the driver's functions, of a CUDA toolkit.

    runner/shim/driver_table.py [TOOLKIT]           prints the table
    runner/shim/driver_table.py --check [TOOLKIT]   exit code 1 if a function of the toolkit's is missing in the table

Names are those of the toolkit's stub of libcuda.so, with all their versions. Which argument is the stream and which the
size, and since which version of CUDA a variant is what cuGetProcAddress answers, are read from cuda.h and
cudaTypedefs.h. What submits work is said by RULES below. TOOLKIT is /usr/local/cuda unless told."""

import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# The first that matches a name without its suffixes; everything else submits nothing.
RULES = [
    (r"cuLaunchKernelEx", "SUBMIT", "kConfig"),
    (r"cuLaunchCooperativeKernelMultiDevice", "SUBMIT", "kSeveral"),
    (r"cuLaunchKernel", "SUBMIT", "kKernel"),
    (r"cuLaunchCooperativeKernel", "SUBMIT", "kCooperative"),
    (r"cuLaunch(Grid(Async)?)?", "SUBMIT", "kFunction"),
    (r"cuGraphLaunch", "SUBMIT", "kGraph"),
    (r"cuGraphUpload|cuMemcpy\w*|cuMemset\w*", "SUBMIT", "kCopy"),
    (r"cuMemPrefetch\w*|cuMemDiscard\w*|cuMemBatchDecompressAsync|cuMemMapArrayAsync", "SUBMIT", "kCopy"),
    (r"cuStream(WaitValue|WriteValue)\d+|cuStreamBatchMemOp", "SUBMIT", "kSignal"),
    (r"cu(Signal|Wait)ExternalSemaphoresAsync", "SUBMIT", "kSignal"),
    (r"cuLaunchHostFunc|cuStreamAddCallback", "NOTICE", "kHost"),
    (r"cuStreamBegin\w*Capture\w*", "NOTICE", "kBeginCapture"),
    (r"cuStreamEndCapture", "NOTICE", "kEndCapture"),
    (r"cuStreamDestroy", "NOTICE", "kDestroyStream"),
    (r"cuCtxDestroy|cuCtxDetach|cuDevicePrimaryCtx(Reset|Release)|cuGreenCtxDestroy", "NOTICE", "kForget"),
    (r"cuMem(Alloc|AllocAsync|AllocFromPoolAsync|Create)", "NOTICE", "kAllocate"),
    (r"cuMem(Free|FreeAsync|Release)", "NOTICE", "kFree"),
    (r"cuModuleGetFunction|cuLibraryGetKernel", "NOTICE", "kNames"),
    (r"cuKernelGetFunction", "NOTICE", "kRenames"),
    (r"cuGetProcAddress|cuGetExportTable|cuMemGetInfo|cuDeviceTotalMem", "OWN", ""),
]
SIZES = ("ByteCount", "count", "N", "bytesize")


def base_of(name):
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", name)


def names_of(toolkit):
    stub = next(
        iter(sorted(toolkit.glob("lib*/stubs/libcuda.so")) + sorted(toolkit.glob("targets/*/lib/stubs/libcuda.so")))
    )
    listed = subprocess.run(["nm", "-D", "--defined-only", stub], capture_output=True, text=True, check=True).stdout
    return sorted(name for name in (line.split()[-1] for line in listed.splitlines()) if name.startswith("cu"))


def prototypes_of(toolkit):
    """{name: argument names}; the last prototype of a name is the one without cuda.h's macros for versions."""
    found = {}
    text = (toolkit / "include/cuda.h").read_text(errors="replace")
    for name, arguments in re.findall(
        r"^\s*(?:__CUDA_DEPRECATED )?CUresult CUDAAPI (cu\w+)\(([^;]*?)\);", text, re.M | re.S
    ):
        words = [re.findall(r"\w+", one) for one in arguments.split(",")]
        found.setdefault(name, []).append([one[-1] for one in words if one])
    return found


def versions_of(toolkit):
    """{(name, suffix): versions of CUDA in which it changed}, ascending."""
    found = {}
    text = (toolkit / "include/cudaTypedefs.h").read_text(errors="replace")
    for name, version, suffix in re.findall(r"PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", text):
        found.setdefault((name, suffix), set()).add(int(version))
    return {key: sorted(value) for key, value in found.items()}


def arguments_of(name, prototypes):
    bare = re.sub(r"(_ptsz|_ptds)$", "", name)
    for candidate in (name, bare):
        if candidate in prototypes:
            return prototypes[candidate][-1]
    return prototypes.get(base_of(name), [[]])[0]


def row_of(name, prototypes, versions):
    base = base_of(name)
    found = next(((macro, kind) for pattern, macro, kind in RULES if re.fullmatch(pattern, base)), None)
    if found is None:
        return f"FREERIDE_PASS({name})"
    macro, kind = found
    suffix = re.search(r"(_ptsz|_ptds)?$", name)[0]
    number = re.search(r"_v(\d+)", name)
    known = versions.get((base, suffix), [])
    since = known[min(int(number[1]) if number else 1, len(known)) - 1] if known else 0
    if macro == "OWN":
        return f"FREERIDE_OWN({name}, {since})"
    arguments = arguments_of(name, prototypes)
    stream = next((i for i, one in enumerate(arguments) if one in ("hStream", "stream")), -1)
    if macro == "NOTICE":
        return f"FREERIDE_NOTICE({name}, {kind}, {stream}, {since})"
    size = next((arguments.index(one) for one in SIZES if one in arguments), -1) if kind == "kCopy" else -1
    return f"FREERIDE_SUBMIT({name}, {kind}, {stream}, {size}, {since})"


def main():
    options = [one for one in sys.argv[1:] if one.startswith("--")]
    paths = [one for one in sys.argv[1:] if not one.startswith("--")]
    toolkit = pathlib.Path(paths[0] if paths else "/usr/local/cuda")
    names = names_of(toolkit)
    if options == ["--check"]:
        table = set(re.findall(r"\((cu\w+)", (HERE / "src/driver.inc").read_text()))
        missing = [name for name in names if name not in table]
        print("\n".join(f"missing in driver.inc: {name}" for name in missing) or "driver table: ok")
        return 1 if missing else 0
    prototypes, versions = prototypes_of(toolkit), versions_of(toolkit)
    print("// Made by driver_table.py: the functions of the CUDA driver. Arguments count from 0; -1: there is none.")
    print("// FREERIDE_PASS(name): submits nothing.")
    print("// FREERIDE_SUBMIT(name, what, stream argument, size argument, since CUDA version): waits at the gate.")
    print("// FREERIDE_NOTICE(name, what, stream argument, since CUDA version): passes, and the shim takes note.")
    print("// FREERIDE_OWN(name, since CUDA version): the shim has an answer of its own.")
    for name in names:
        print(row_of(name, prototypes, versions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
