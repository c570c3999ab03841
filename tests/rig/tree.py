"""Where what is run lies: in a build folder, or in a packed tree (make dist)."""

import os
import pathlib

from .processes import Failure

SOURCE = pathlib.Path(os.environ.get("FREERIDE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
PYTHON = "/usr/bin/python3"  # Debian's, which has PyTorch


def folder(path):
    """Of a command line: the same from wherever it is used."""
    return pathlib.Path(path).resolve()


class Tree:
    """Folders of the programs, of the plugins and of the Python package freeride."""

    def __init__(self, programs, plugins=None, hooks=None):
        self.programs = pathlib.Path(programs).resolve()
        self.plugins = pathlib.Path(plugins or self.programs.parent / "plugins").resolve()
        self.hooks = pathlib.Path(hooks or SOURCE / "hooks/python").resolve()

    @classmethod
    def of_build(cls, build):
        return cls(pathlib.Path(build) / "bin")

    def program(self, name):
        path = self.programs / name
        if not path.exists():
            raise Failure(f"{path} is not there; build it first")
        return path

    def plugin(self, name):
        """Of what was built, by its file's name: also of the tests' own."""
        for path in sorted(self.programs.parent.rglob(name)):
            return path
        raise Failure(f"{name} is not under {self.programs.parent}; build it first")

    def hook_library(self):
        for folder in (self.programs.parent / "lib", self.hooks / "freeride"):
            if (folder / "libfreeride_hook.so").exists():
                return folder / "libfreeride_hook.so"
        raise Failure(
            f"libfreeride_hook.so is in neither {self.programs.parent / 'lib'} nor {self.hooks / 'freeride'}; build it first"
        )

    def libraries(self):
        """The worker's flags: a sandbox shows the system's libraries only, and a packed tree has its own."""
        folder = self.programs.parent / "lib"
        return ["--library-dir", folder] if (folder / "libzmq.so.5").exists() else []


def environment():
    """Ours, without anything that would decide for the programs started."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FREERIDE_", "CUDA_MPS_", "TORCHELASTIC_"))
    }
