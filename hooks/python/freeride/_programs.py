"""Where this installation's programs are, and how Python becomes one of them.

The wheel has them in `_tree` inside of this package, a packed tree (make dist) and a Debian package beside it, each in a folder of
its own; else they are looked for on the PATH. Needs nothing but Python and imports nothing heavy: it is the start of every command.
"""

import os
import shutil
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def tree():
    """The folder with bin, lib and plugins that belongs to this package; None if there is none (a checkout)."""
    folders = [os.path.join(_HERE, "_tree")]
    around, name = os.path.split(os.path.dirname(_HERE))
    if name == "python":  # TREE/python/freeride, or PREFIX/share/freeride/python/freeride
        folders += [around, os.path.dirname(os.path.dirname(around))]
    for folder in folders:
        if os.access(os.path.join(folder, "bin", "freeride-ctl"), os.X_OK):
            return folder
    return None


def find(name):
    """The path of the program `name` (freeride-ctl, ...): this installation's own, else the first on the PATH. None: there is none."""
    own = tree()
    if own is not None:
        path = os.path.join(own, "bin", name)
        if os.access(path, os.X_OK):
            return path
    # pip makes commands of these names also where the package has no programs: such a command must not start itself.
    itself = os.path.realpath(sys.argv[0])
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = shutil.which(name, path=folder) if folder else None
        if path and os.path.realpath(path) != itself:
            return path
    return None


def become(name, arguments):
    """Replaces this process by the program `name`. Returns an exit code only if that cannot be done, which it then has said."""
    path = find(name)
    if path is None:
        print(
            f"{name}: the program is neither in {_HERE} nor on the PATH; install FreeRide's wheel or packages (docs/operators/install.md)",
            file=sys.stderr,
        )
        return 127
    sys.stdout.flush()
    try:
        os.execv(path, [path, *arguments])
    except OSError as error:
        print(f"{name}: {path} cannot be started: {error.strerror}", file=sys.stderr)
    return 126


def main():
    """The commands that pip makes: each becomes the program of its name."""
    return become(os.path.basename(sys.argv[0]), sys.argv[1:])
