"""Cuts a connection between two other processes, as a link that is lost would: neither of them has done anything."""

import contextlib
import ctypes
import os
import socket

_PIDFD_GETFD = 438
_SO_ACCEPTCONN = 30


def sockets_of(pid, kind):
    """Connected UNIX sockets of this process, of this kind (socket.SOCK_…), as sockets of ours, in order."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
                with contextlib.suppress(OSError):
                    if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                        continue
                    fd = libc.syscall(_PIDFD_GETFD, pidfd, int(name), 0)
                    if fd < 0:
                        continue
                    one = socket.socket(fileno=fd)
                    named = one.getsockname() or one.getpeername()  # no socketpair: these belong to one family
                    if (
                        one.family == socket.AF_UNIX
                        and one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == kind
                        and not one.getsockopt(socket.SOL_SOCKET, _SO_ACCEPTCONN)
                        and named
                    ):
                        found.append(one)
                    else:
                        one.close()
        finally:
            os.close(pidfd)
    return found


def cut(pid, kind, pick):
    """Shuts one of them down, both ways; False where there is none."""
    found = sockets_of(pid, kind)
    if found:
        with contextlib.suppress(OSError):
            found[int(pick * len(found))].shutdown(socket.SHUT_RDWR)
    for one in found:
        one.close()
    return bool(found)


def listens(path):
    """Whether somebody takes connections at this socket's name."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as one, contextlib.suppress(OSError):
            one.connect(str(path))
            return True
    return False
