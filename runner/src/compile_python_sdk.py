"""Writes C++ with the bytecode of the Python SDK: a third of a Python side task's start is otherwise its compilation.

compile_python_sdk.py freeride_plugin.py python_sdk_bytecode.cpp

It is the bytecode of the Python that executes this. The runner uses it in interpreters of the same magic number, and compiles
the text in all others."""

import importlib.util
import marshal
import pathlib
import sys


def main():
    source, out = map(pathlib.Path, sys.argv[1:])
    code = marshal.dumps(compile(source.read_bytes(), source.name, "exec", dont_inherit=True, optimize=0))
    lines = [", ".join(map(str, code[at : at + 30])) for at in range(0, len(code), 30)]
    out.write_text(
        f"// Generated from {source.name} by {pathlib.Path(__file__).name}.\n"
        '#include "python_sdk.hpp"\n\n'
        "namespace freeride::runner {\n\n"
        f"const long kPythonSdkMagic = {int.from_bytes(importlib.util.MAGIC_NUMBER, 'little')};\n"
        f"const size_t kPythonSdkBytecodeSize = {len(code)};\n"
        "const unsigned char kPythonSdkBytecode[] = {\n    " + ",\n    ".join(lines) + "};\n\n"
        "}  // namespace freeride::runner\n"
    )


main()
