"""Runs a command as on a kernel before 5.16: futex_waitv says ENOSYS, for it and all that it starts.

without_futex_waitv.py COMMAND [ARGUMENT...]
"""

import ctypes
import errno
import os
import struct
import sys

_FUTEX_WAITV = 449  # on every architecture
_LOAD_NUMBER, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def refuse():
    """For this process and its children, for good."""
    rules = b"".join(
        struct.pack("HBBI", *rule)
        for rule in (
            (_LOAD_NUMBER, 0, 0, 0),
            (_EQUAL, 0, 1, _FUTEX_WAITV),
            (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    program = struct.pack("HP", 4, ctypes.addressof(buffer := ctypes.create_string_buffer(rules, len(rules))))
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 and libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no new privileges")
    if libc.prctl(_SET_SECCOMP, _FILTER, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the filter is refused")
    del buffer
    if libc.syscall(_FUTEX_WAITV, None, 0, 0, None, 0) != -1 or ctypes.get_errno() != errno.ENOSYS:
        raise OSError("futex_waitv is still there")


if __name__ == "__main__":
    refuse()
    os.execvp(sys.argv[1], sys.argv[1:])
