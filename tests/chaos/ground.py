"""What the system stands on, made so that it can be taken away: a disk, /dev/shm, a wall clock. All of it is in a mount
namespace of this process's own, so that nothing is left of it however this process ends."""

import contextlib
import ctypes
import errno
import itertools
import os
import pathlib
import struct
import subprocess
import sys
import time

_CLONE_NEWNS = 0x00020000
_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
DISK_BYTES, SHM_BYTES = 1 << 30, 32 << 20
SLOW_FREEZE_S, SLOW_THAW_S = 0.2, 0.02  # a slow disk is one that stands still for most of the time

# A process of its own, in a session of its own: however chaos ends, the disk goes on.
_FREEZER = """
import fcntl, os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
disk, end, freeze, thaw = os.open(sys.argv[1], os.O_RDONLY), time.monotonic() + float(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
while time.monotonic() < end:
    fcntl.ioctl(disk, %d, 0)
    try: time.sleep(max(0, min(freeze, end - time.monotonic())))
    finally: fcntl.ioctl(disk, %d, 0)
    time.sleep(thaw)
""" % (_FIFREEZE, _FITHAW)


class Ground:
    """`impossible`: {kind of blow: why this host has none}."""

    def __init__(self, state_dir, folder):
        self.impossible = {}
        self.state_dir, self._folder = pathlib.Path(state_dir), pathlib.Path(folder)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS) != 0:
            why = f"no mount namespace of its own: {os.strerror(ctypes.get_errno())}"
            self.impossible = {kind: why for kind in ("disk-frozen", "disk-slow", "disk-full", "shm-full")}
        else:
            self._mount("--make-rprivate", "/")
            self._make_shm()
            self._make_disk()
        self._clock = self._folder / "clock"
        self._clock.write_bytes(struct.pack("=q", 0))

    @staticmethod
    def _mount(*words):
        done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr.strip().split("\n")[0] or f"mount failed: {done.returncode}"

    def _make_shm(self):
        why = self._mount("-t", "tmpfs", "-o", f"size={SHM_BYTES},mode=1777", "chaos", "/dev/shm")
        if why:
            self.impossible["shm-full"] = why

    def _make_disk(self):
        """ext4 in a file, else a small tmpfs, which can be full but not slow."""
        image = self._folder / "disk"
        with open(image, "wb") as file:
            file.truncate(DISK_BYTES)
        made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], capture_output=True, text=True, check=False)
        why = made.stderr.strip() if made.returncode else self._mount("-o", "loop", image, self.state_dir)
        if why:
            self.impossible["disk-frozen"] = self.impossible["disk-slow"] = f"no disk of its own: {why}"
            why = self._mount("-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0755", "chaos", self.state_dir)
            if why:
                self.impossible["disk-full"] = why
        (self.state_dir / "plugins").mkdir(exist_ok=True)

    def environment(self, library):
        """So that programs have a wall clock that step() steps."""
        return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._clock)}

    def step_clock(self, seconds):
        with open(self._clock, "r+b") as file:
            file.write(struct.pack("=q", seconds))

    def freeze(self, seconds, slow):
        """Nobody can write to the disk until then; `slow`: for most of the time. Returns its process."""
        lengths = (SLOW_FREEZE_S, SLOW_THAW_S) if slow else (seconds, 0)
        return subprocess.Popen(
            [sys.executable, "-c", _FREEZER, str(self.state_dir), str(seconds), *map(str, lengths)],
            start_new_session=True,
        )

    @contextlib.contextmanager
    def full(self, folder):
        """No byte is left in it."""
        path = pathlib.Path(folder) / "chaos-fills-this"
        try:
            with open(path, "wb", buffering=0) as file:
                for size in (64 << 20, 1 << 20):  # without writing them
                    with contextlib.suppress(OSError):
                        for offset in itertools.count(os.fstat(file.fileno()).st_size, size):
                            os.posix_fallocate(file.fileno(), offset, size)
                file.seek(0, os.SEEK_END)
                for size in (4096, 1):
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(b"\0" * size)
            yield
        finally:
            for _ in range(100):
                try:
                    path.unlink(missing_ok=True)
                    break
                except OSError as error:  # a frozen disk does not let go of it either
                    if error.errno not in (errno.EROFS, errno.ENOSPC):
                        raise
                    time.sleep(0.1)

    def close(self):
        """Why the disk cannot be taken down, or "": then somebody still has it."""
        if not os.path.ismount(self.state_dir):
            return ""
        done = subprocess.run(["umount", str(self.state_dir)], capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(["umount", "--lazy", str(self.state_dir)], check=False)
        return done.stderr.strip()
