"""Fresh Debian systems to try things in: made once by debootstrap, and then a layer over one that is thrown away. Needs root.

A layer runs in namespaces of mounts and processes; kernel and network are this host's. It is entered by pivot_root, not chroot: in a
chroot nobody may make the user namespaces that sandboxes are."""

import pathlib
import shutil
import subprocess
import sys

MIRROR = "http://deb.debian.org/debian"

# $1: the system's files, $2: the layer, $3: folders of this host that are seen inside, a line each: HERE<tab>THERE; then the command.
_ENTER = """
set -eu
system=$1 layer=$2 seen=$3
shift 3
mount --make-rprivate /
mount -t overlay -o "lowerdir=$system,upperdir=$layer/changed,workdir=$layer/work" overlay "$layer/root"
cd "$layer/root"
mkdir -p proc sys dev old
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=0755 tmpfs run
printf '%s' "$seen" | while IFS="$(printf '\\t')" read -r here there; do
  mkdir -p ".$there"
  mount --bind "$here" ".$there"
done
cp -L /etc/resolv.conf etc/resolv.conf
pivot_root . old
umount -l /old
cd /
exec "$@"
"""


def made(suite, packages, folder, name=None):
    """The files of a Debian `suite` with `packages`, in `folder` by its `name` (default: the suite's). Made if they are not there, which
    takes minutes and Debian's mirror. SystemExit where that fails."""
    root = folder / (name or suite)
    if root.exists():
        return root
    print(f"{root.name}: is made, which takes some minutes", file=sys.stderr, flush=True)
    new, debs = root.with_name(root.name + ".new"), folder / "debs"
    shutil.rmtree(new, ignore_errors=True)
    debs.mkdir(parents=True, exist_ok=True)
    words = ["debootstrap", "--variant=minbase", f"--cache-dir={debs}", f"--include={','.join(packages)}"]
    with open(folder / f"{root.name}.log", "w") as log:
        done = subprocess.run([*words, suite, new, MIRROR], stdout=log, stderr=log, check=False)
    if done.returncode != 0:
        sys.exit(f"debootstrap of {suite} failed, see {log.name}")
    shutil.rmtree(new / "var/cache/apt/archives", ignore_errors=True)
    return new.rename(root)


class Layer:
    """What is changed in a system, in `folder`, which is made empty. One thread."""

    def __init__(self, root, folder):
        self.root, self.folder = root, pathlib.Path(folder)
        self.remove()
        for name in ("changed", "work", "root"):
            (self.folder / name).mkdir(parents=True)

    def run(self, words, seen=(), **options):
        """subprocess.run() of `words` as root inside; `seen`: pairs of a folder here and its path there. Its processes end with it."""
        folders = "".join(f"{here}\t{there}\n" for here, there in seen)
        unshare = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child=KILL", "sh", "-c", _ENTER, "enter"]
        return subprocess.run([*unshare, self.root, self.folder, folders, *words], check=False, **options)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)
