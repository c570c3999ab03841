"""The shim's page of a program, freeride_shim_page of pages/include/freeride/pages.h: what its shim of libcuda counted."""

import ctypes

U32, U64, TEXT = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char * 64
WRITTEN = 2  # state of a name


class Name(ctypes.Structure):
    """A function of the driver that the shim does not know."""

    _fields_ = [("state", U32), ("name", ctypes.c_char * 52), ("calls", U64)]


class ShimPage(ctypes.Structure):
    _fields_ = [
        ("magic", U64),
        ("version", U32),
        ("processes", U32),
        *((name, U64) for name in ("submissions", "waits", "waited_ns", "captured", "refused", "host_functions")),
        *((name, U64) for name in ("measured", "measured_ns", "longest_ns")),
        ("longest_name", TEXT),
        *((name, U64) for name in ("leases", "lease_longest_ns", "too_long", "too_long_ns")),
        ("too_long_name", TEXT),
        *((name, U64) for name in ("let_in", "stalled", "late", "late_ns", "late_most_ns", "full_most_ns")),
        *((name, U64) for name in ("export_tables", "unlisted", "full", "full_ns", "marks", "held")),
        ("reserved0", U64 * 21),
        ("names", Name * 48),
    ]


assert ctypes.sizeof(ShimPage) == 3584  # as pages.h says


def counters_of(data):
    """All numbers and texts of a page's bytes, by name, and how often each unknown function was called."""
    page = ShimPage.from_buffer_copy(data)
    found = {}
    for name, kind in ShimPage._fields_:
        if kind is U64 and name != "magic":
            found[name] = getattr(page, name)
        elif kind is TEXT:
            found[name] = getattr(page, name).decode("ascii", "replace")
    found["unknown"] = {one.name.decode("ascii", "replace"): one.calls for one in page.names if one.state == WRITTEN}
    return found
