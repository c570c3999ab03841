"""FreeRide's pages from Python: the layouts of freeride/pages.h, made and mapped with the same checks as in C++ (pages/README.md).

For tools and tests. Views are over shared memory: what is read may change at any time, and a page of another process may hold anything.
"""

import ctypes
import ctypes.util
import fcntl
import mmap
import os
import platform
import secrets
import socket
import stat
import struct
import time

MAJOR, MINOR = 1, 9
NAME_BYTES, MAX_WAITS, HISTORY, ITERATIONS, MAX_RANKS, METRICS, MAX_PHASES = 64, 1024, 1024, 256, 64, 8, 16
POISON = 0xFFFFFFFF
GUESSED = 2  # of BubblePage.flags: nobody has told stage and replica
PHASE_OPEN = 1  # of BubblePage.idle_flags: nobody knows how long the phase lasts
HOOK_STARTING, HOOK_ACTIVE, HOOK_DISABLED, HOOK_GONE = range(4)
RANK_ABSENT, RANK_HOOKED, RANK_DISABLED, RANK_DEAD = range(4)
ORDER_PAUSE, ORDER_RUN, ORDER_STOP = range(3)
LEASE_NONE, LEASE_BUBBLE, LEASE_INIT, LEASE_PROFILE, LEASE_IDLE, LEASE_SAVE = range(6)
WAKE_RUNNER, WAKE_SUPERVISOR = 1, 2
HELLO = b"FRHELLO1"

_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 1, 2, 4, 16
_MAX_BYTES = 16 << 20

_u32, _u64 = ctypes.c_uint32, ctypes.c_uint64


def state(iteration, wait):
    """The state word of wait `wait` (from 1; 0: training owns the device) in `iteration`."""
    return iteration << 16 | wait & 0xFFFF


def state_wait(word):
    return word & 0xFFFF


def state_iteration(word):
    return word >> 16


def phase(number, name):
    """A phase's word: its number, from 1, and its name's."""
    return number << 8 | name & 0xFF


def phase_number(word):
    return word >> 8


def phase_name(word):
    return word & 0xFF


def phase_wait(name):
    """The wait's number under which phases of this name stand in history."""
    return 0xFF00 + name


class PageError(Exception):
    """These bytes are no page of the wanted type, or not one that is safe to map."""


def _fields(*names_and_types):
    return [(name, kind) for kind, names in names_and_types for name in names.split()]


class Header(ctypes.Structure):
    _fields_ = [("magic", _u64), ("major", _u32), ("minor", _u32), ("size_bytes", _u64), ("incarnation", _u64)]


class Learned(ctypes.Structure):
    _fields_ = _fields((_u64, "low_ns mid_ns high_ns"), (_u32, "samples type"))


class BubbleRecord(ctypes.Structure):
    _fields_ = _fields((_u64, "state_word begin_ns end_ns learned_low_ns"))


class IterationRecord(ctypes.Structure):
    _fields_ = _fields((_u64, "iteration begin_ns end_ns bubble_ns"))


class Phase(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 32),
        ("learned", Learned),
        *_fields((_u64, "count total_ns apart_ns reserved0")),
    ]


class HoldCost(ctypes.Structure):
    _fields_ = [*_fields((ctypes.c_int32, "increase_ppm low_ppm high_ppm"), (_u32, "periods"))]


class BubblePage(ctypes.Structure):
    MAGIC, TITLE, VERSION_1_BYTES = 0x454C424255425246, "bubble page", 74240
    _fields_ = [
        ("header", Header),
        ("job", ctypes.c_char * NAME_BYTES),
        ("device", ctypes.c_char * NAME_BYTES),
        ("framework", ctypes.c_char * NAME_BYTES),
        *_fields(
            (_u32, "rank stage stages replica replicas pid budget flags"),
            (_u64, "state_word begin_ns"),
            (_u32, "wake hook_state"),
            (_u64, "iteration"),
            (_u32, "waits relearned"),
            (_u64, "usable_bytes bubbles compute_ns expected_ns wanted_bytes"),
        ),
        ("held", HoldCost),
        ("held_with_leases", HoldCost),
        ("bell", _u64),
        ("noted", _u32),
        ("idle_flags", _u32),
        *_fields((_u64, "idle_marked idle_begun idle_begin_ns idle_expected_ns idle_ended")),
        ("reserved1", ctypes.c_uint8 * 88),
        ("learned", Learned * MAX_WAITS),
        ("history", BubbleRecord * HISTORY),
        ("iterations", IterationRecord * ITERATIONS),
        ("phases", Phase * MAX_PHASES),
    ]


class BellPage(ctypes.Structure):
    MAGIC, TITLE, VERSION_1_BYTES = 0x204C4C4542525246, "bell page", 64
    _fields_ = [("header", Header), ("rings", _u32), ("reserved0", _u32 * 7)]


class SentRank(ctypes.Structure):
    _fields_ = [("status", _u32), ("pid", _u32), ("start_time", _u64)]


class SentPage(ctypes.Structure):
    MAGIC, TITLE, VERSION_1_BYTES = 0x20544E4553525246, "sent page", 17472
    _fields_ = [
        ("header", Header),
        ("ranks", _u32),
        ("reserved0", _u32),
        ("reserved1", _u64 * 3),
        ("rank", SentRank * MAX_RANKS),
        ("sent", (_u32 * MAX_RANKS) * MAX_RANKS),
        ("world_rank", _u32 * MAX_RANKS),
        ("met", (_u32 * MAX_RANKS) * MAX_RANKS),
        ("ended", (_u64 * MAX_RANKS) * MAX_RANKS),
    ]


class LeasePage(ctypes.Structure):
    MAGIC, TITLE, VERSION_1_BYTES = 0x455341454C525246, "lease page", 96
    _fields_ = [
        ("header", Header),
        *_fields(
            (_u32, "sequence order kind iteration"),
            (_u64, "lease_id deadline_ns opened_ns grace_ns hang_ns begin_ns orders_until_ns orders_end_ns"),
        ),
    ]


class Metric(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 24), ("value", ctypes.c_double)]


class AnswerPage(ctypes.Structure):
    MAGIC, TITLE, VERSION_1_BYTES = 0x5257534E41525246, "answer page", 672
    _fields_ = [
        ("header", Header),
        *_fields(
            (_u32, "sequence state transition result"),
            (
                _u64,
                "lease_id transition_ns last_paused_ns last_paused_cpu_ns steps step_ns lease_step_ns predicted_ns skipped "
                "create_ns init_ns first_step_ns pause_seen_ns finished",
            ),
        ),
        ("message", ctypes.c_char * 256),
        ("metrics", Metric * METRICS),
        *_fields((_u64, "saved_lease restored")),
    ]


# ---- making and mapping --------------------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


_MAP_FIXED, _MAP_FAILED = 0x10, ctypes.c_void_p(-1).value


class Mapped:
    """A mapped page; `.view` is the ctypes structure over it, valid until close(). What the structure has past the end of the page's file reads
    as zero, and is this process's own. Writing to a read-only one ends the process."""

    def __init__(self, kind, fd, size, writable):
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._size = max(size, ctypes.sizeof(kind))
        self._address = None
        address = None
        if self._size > size:
            address = _libc.mmap(None, self._size, protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if address != _MAP_FAILED:
            around, address = (
                address,
                _libc.mmap(address, size, protection, mmap.MAP_SHARED | (_MAP_FIXED if address else 0), fd, 0),
            )
            if address == _MAP_FAILED and around:
                _libc.munmap(around, self._size)
        if address == _MAP_FAILED:
            raise PageError(f"{kind.TITLE}: cannot be mapped: {os.strerror(ctypes.get_errno())}")
        self._address = address
        self.kind = kind
        self.view = kind.from_address(self._address)

    def copy(self):
        """A snapshot; single fields are whole, several together need not be."""
        return self.kind.from_buffer_copy(ctypes.string_at(self._address, ctypes.sizeof(self.kind)))

    def address_of(self, field):
        return self._address + getattr(self.kind, field).offset

    def close(self):
        if self._address is not None:
            self.view = None
            _libc.munmap(self._address, self._size)
            self._address = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _head(kind, fd):
    size = ctypes.sizeof(kind)
    os.ftruncate(fd, size)
    os.posix_fallocate(fd, 0, size)
    page = Mapped(kind, fd, size, True)
    page.view.header = Header(kind.MAGIC, MAJOR, MINOR, size, secrets.randbits(63) + 1)
    return page


def create(kind, others_read_only=False):
    """(fd, Mapped): a new page in a sealed memfd. `others_read_only`: no writable mapping after this one."""
    fd = os.memfd_create(kind.TITLE, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        page = _head(kind, fd)
        fcntl.fcntl(
            fd, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL | (_SEAL_FUTURE_WRITE if others_read_only else 0)
        )
        return fd, page
    except BaseException:
        os.close(fd)
        raise


def map_page(kind, fd, writable=False, sealed=True):
    """Maps somebody else's page after checking seals, size, magic, major version and what it says of itself; raises PageError."""
    info = os.fstat(fd)
    least = kind.VERSION_1_BYTES
    if not stat.S_ISREG(info.st_mode):
        raise PageError(f"{kind.TITLE}: the descriptor is not a memory file")
    if sealed:
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
        except OSError:
            seals = 0
        if seals & (_SEAL_SHRINK | _SEAL_GROW) != _SEAL_SHRINK | _SEAL_GROW:
            raise PageError(f"{kind.TITLE}: not sealed against shrinking and growing")
    if not least <= info.st_size <= _MAX_BYTES:
        raise PageError(f"{kind.TITLE}: {info.st_size} bytes, at least {least} expected")
    page = Mapped(kind, fd, info.st_size, writable)
    header = page.copy().header
    problem = None
    if header.magic != kind.MAGIC:
        problem = "wrong magic"
    elif header.major != MAJOR:
        problem = f"layout version {header.major}.{header.minor}, this program knows {MAJOR}.x"
    elif not least <= header.size_bytes <= info.st_size:
        problem = f"says that it is {header.size_bytes} bytes long, but has {info.st_size}"
    elif header.incarnation == 0:
        problem = "incarnation 0"
    if problem:
        page.close()
        raise PageError(f"{kind.TITLE}: {problem}")
    return page


def open_sent(path):
    """Maps a sent page's file, read-write."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return map_page(SentPage, fd, writable=True, sealed=False)
    finally:
        os.close(fd)


# ---- reading ---------------------------------------------------------------------------------------------------------------------


def read_field(kind, fd, name):
    """One number of a page, through its descriptor and without mapping it: `read_field(BubblePage, fd, "iteration")`. 0 where the page ends
    before it."""
    field = getattr(kind, name)
    return int.from_bytes(os.pread(fd, field.size, field.offset), "little")


def finished_bubbles(page, after=0):
    """The bubbles numbered `after` and up that are still in the history, oldest first, as (number, BubbleRecord)."""
    newest = page.view.bubbles
    found = []
    for number in range(max(after, newest - HISTORY), newest):
        found.append((number, BubbleRecord.from_buffer_copy(page.view.history[number % HISTORY])))
    overwritten = page.view.bubbles - HISTORY  # the writer went on meanwhile, and may be at work on this one
    return [(number, record) for number, record in found if number > overwritten]


def read_lease(page, tries=1000):
    """A consistent copy of the lease page, or None: no lease (a writer died while writing)."""
    for _ in range(tries):
        before = page.view.sequence
        if before % 2 == 0:
            copy = page.copy()
            if page.view.sequence == before:
                return copy
    return None


def write_lease(page, **fields):
    """Writes the given fields under the seqlock; for tests, since only a worker writes leases."""
    sequence = page.view.sequence & ~1
    page.view.sequence = sequence + 1
    for name, value in fields.items():
        setattr(page.view, name, value)
    page.view.sequence = (sequence + 2) & 0xFFFFFFFF


# ---- futexes ---------------------------------------------------------------------------------------------------------------------

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
_WAIT_BITSET, _WAKE_BITSET, _ANY = 9, 10, 0xFFFFFFFF


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


def futex_wait(page, field, expected, timeout=None, bits=_ANY):
    """Sleeps while the field has that value; at most `timeout` seconds. Returns False when the time is up. Wakes may be spurious."""
    until = None
    if timeout is not None:
        at = time.monotonic_ns() + int(timeout * 1e9)
        until = ctypes.byref(_Timespec(at // 10**9, at % 10**9))
    result = _libc.syscall(
        _SYS_FUTEX, ctypes.c_void_p(page.address_of(field)), _WAIT_BITSET, _u32(expected), until, None, _u32(bits)
    )
    return not (result != 0 and ctypes.get_errno() == 110)


def futex_wake(page, field, bits=_ANY):
    return _libc.syscall(
        _SYS_FUTEX, ctypes.c_void_p(page.address_of(field)), _WAKE_BITSET, 0x7FFFFFFF, None, None, _u32(bits)
    )


# ---- the worker's side of the handover, for tools and tests --------------------------------------------------------------------


def listen(path):
    """A socket at which trainers hand over their pages, as a worker's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(16)
    return listener


def take_page(connection):
    """Receives a trainer's page from an accepted connection, answers, and returns it mapped; raises PageError after answering ERR."""
    data, control, _, _ = connection.recvmsg(64, socket.CMSG_SPACE(16))
    fds = [
        fd
        for level, kind, body in control
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        for fd in struct.unpack(f"{len(body) // 4}i", body[: len(body) // 4 * 4])
    ]
    try:
        if data != HELLO or len(fds) != 1:
            raise PageError("the first datagram is no hello with one descriptor")
        page = map_page(BubblePage, fds[0])
    except PageError as error:
        connection.send(b"ERR " + str(error).encode())
        raise
    finally:
        for fd in fds:
            os.close(fd)
    connection.send(b"OK")
    return page
