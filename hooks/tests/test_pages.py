"""Python and C++ read each other's pages, and refuse the same ones."""

import ctypes
import fcntl
import os
import re
import subprocess
import threading

import pytest

from freeride import pages
from support import BUILD, SOURCE

TYPES = {"u8": 1, "char": 1, "u32": 4, "i32": 4, "u64": 8, "f64": 8}
KINDS = {
    "header": pages.Header,
    "bubble": pages.BubblePage,
    "learned": pages.Learned,
    "hold_cost": pages.HoldCost,
    "phase": pages.Phase,
    "bubble_record": pages.BubbleRecord,
    "iteration_record": pages.IterationRecord,
    "bell": pages.BellPage,
    "sent": pages.SentPage,
    "sent_rank": pages.SentRank,
    "lease": pages.LeasePage,
    "answer": pages.AnswerPage,
    "metric": pages.Metric,
}


def tool(verb, kind, fd):
    return subprocess.run(
        [BUILD / "bin/page_tool", verb, kind, str(fd)],
        pass_fds=[fd],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def fields(result):
    assert result.returncode == 0, result.stderr
    return dict(line.split("=", 1) for line in result.stdout.splitlines())


@pytest.mark.parametrize("name", KINDS)
def test_layout_is_the_specification(name):
    text = (SOURCE / "pages/README.md").read_text()
    section = re.search(rf"^### {name}\n(.*?)(?=^#|\Z)", text, re.M | re.S).group(1)
    rows = re.findall(r"^\| (\d+) \| ([^ |]+) \| (\w+) \|", section, re.M)
    assert [row[2] for row in rows] == [field[0] for field in KINDS[name]._fields_]
    for offset, kind, field in rows:
        assert getattr(KINDS[name], field).offset == int(offset), field
        base, *dimensions = re.findall(r"\w+", kind)
        size = TYPES[base] if base in TYPES else ctypes.sizeof(KINDS[base])
        for dimension in dimensions:
            size *= int(dimension)
        assert getattr(KINDS[name], field).size == size, field


def test_cpp_reads_a_bubble_page():
    fd, page = pages.create(pages.BubblePage, others_read_only=True)
    view = page.view
    view.job, view.device, view.framework = "jöb".encode(), b"cpu-3", b"test"
    view.stage, view.stages, view.replicas = 3, 4, 1
    view.state_word = pages.state(7, 2)
    view.bubbles = 5
    view.learned[1023].low_ns = 1001
    view.history[1023].end_ns = 1002
    view.iterations[255].bubble_ns = 1003
    got = fields(tool("read", "bubble", fd))
    assert got == {
        "job": "jöb",
        "device": "cpu-3",
        "framework": "test",
        "stage": "3",
        "incarnation": str(view.header.incarnation),
        "state_word": str(7 << 16 | 2),
        "bubbles": "5",
        "low_1024": "1001",
        "history_last_end": "1002",
        "iterations_last_bubble": "1003",
    }
    view.stage = 4
    refused = tool("read", "bubble", fd)
    assert refused.returncode == 1 and "stage 4 of 4" in refused.stderr
    os.close(fd)


def test_leases_both_ways_and_futex():
    fd, page = pages.create(pages.LeasePage)
    pages.write_lease(page, kind=pages.LEASE_BUBBLE, lease_id=3, deadline_ns=4, begin_ns=5)
    assert fields(tool("read", "lease", fd)) == {
        "lease": "1",
        "lease_id": "3",
        "kind": "1",
        "deadline_ns": "4",
        "begin_ns": "5",
    }

    seen = []

    def runner():
        while page.view.sequence == 2:
            pages.futex_wait(page, "sequence", 2, timeout=60, bits=pages.WAKE_RUNNER)
        seen.append(pages.read_lease(page))

    waiting = threading.Thread(target=runner)
    waiting.start()
    assert tool("write", "lease", fd).returncode == 0
    waiting.join(60)
    lease = seen[0]
    assert (
        lease.order,
        lease.kind,
        lease.lease_id,
        lease.deadline_ns,
        lease.opened_ns,
        lease.grace_ns,
        lease.hang_ns,
        lease.begin_ns,
    ) == (1, 1, 11, 12, 13, 14, 15, 16)
    page.view.sequence += 1  # a worker that died while writing
    assert pages.read_lease(page) is None
    assert fields(tool("read", "lease", fd))["lease"] == "0"
    assert not pages.futex_wait(page, "sequence", page.view.sequence, timeout=0.01)
    os.close(fd)


def test_answers_both_ways():
    fd, page = pages.create(pages.AnswerPage)
    assert tool("write", "answer", fd).returncode == 0
    view = page.view
    assert (view.sequence, view.state, view.steps, view.finished, view.message) == (1, 2, 21, 22, b"last words")
    assert (view.metrics[7].name, view.metrics[7].value) == (b"loss", 2.5)
    view.pause_seen_ns, view.message = 99, b"mine"
    view.metrics[0].name, view.metrics[0].value = b"residual", 0.25
    assert fields(tool("read", "answer", fd)) == {
        "sequence": "1",
        "pause_seen_ns": "99",
        "message": "mine",
        "metric": "residual 0.25",
    }
    os.close(fd)


def raw(content, seals=7):
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if seals:
        fcntl.fcntl(fd, 1033, seals)
    return fd


def spoiled(**changes):
    page = pages.LeasePage()
    page.header = pages.Header(pages.LeasePage.MAGIC, 1, 0, ctypes.sizeof(page), 5)
    for name, value in changes.items():
        setattr(page.header, name, value)
    return bytes(page)


@pytest.mark.parametrize(
    "content,seals,word",
    [
        (spoiled(), 0, "sealed"),
        (spoiled()[: pages.LeasePage.VERSION_1_BYTES - 1], 7, "95 bytes"),
        (spoiled()[:-1], 7, "says that it is"),
        (b"", 7, "bytes"),
        (spoiled(magic=1), 7, "magic"),
        (spoiled(major=2), 7, "version 2.0"),
        (spoiled(size_bytes=4096), 7, "says that it is"),
        (spoiled(size_bytes=1), 7, "says that it is"),
        (spoiled(incarnation=0), 7, "incarnation"),
        (os.urandom(4096), 7, "magic"),
    ],
)
def test_both_refuse_what_is_no_page(content, seals, word):
    fd = raw(content, seals)
    with pytest.raises(pages.PageError, match=word):
        pages.map_page(pages.LeasePage, fd)
    assert tool("read", "lease", fd).returncode == 1
    os.close(fd)


def test_a_longer_page_of_a_newer_minor_is_read():
    fd = raw(spoiled(minor=9, size_bytes=160) + bytes(64))
    pages.map_page(pages.LeasePage, fd).close()
    assert tool("read", "lease", fd).returncode == 0
    os.close(fd)


def first_layout(kind, size=None):
    """A page as version 1.0 made it, or of another size: its header, and a 1 in every byte behind it that version 1 knows."""
    head = pages.Header(kind.MAGIC, 1, 0, size or kind.VERSION_1_BYTES, 5)
    return (bytes(head) + b"\1" * (kind.VERSION_1_BYTES - ctypes.sizeof(head))).ljust(size or 0, b"\0")


@pytest.mark.parametrize("kind", [pages.BubblePage, pages.SentPage, pages.LeasePage, pages.AnswerPage])
def test_a_page_written_by_version_1s_header_is_accepted_for_ever(kind):
    fd = raw(first_layout(kind))
    with pages.map_page(kind, fd, writable=True) as page:
        body = bytes(page.copy())  # all of today's layout can be read
        assert body[ctypes.sizeof(pages.Header) :] == (b"\1" * (kind.VERSION_1_BYTES - 32)).ljust(
            ctypes.sizeof(kind) - 32, b"\0"
        )
        last = kind._fields_[-1][0]
        ctypes.memset(page.address_of(last), 7, getattr(kind, last).size)  # and stored to
    os.close(fd)
    with pytest.raises(pages.PageError, match=f"at least {kind.VERSION_1_BYTES} expected"):
        pages.map_page(kind, raw(first_layout(kind)[:-1]))


def test_a_sent_page_of_each_version_is_opened(tmp_path):
    for size, told in ((17472, [0, 0]), (17728, [0, 0]), (34112, [0, 0]), (66880, [0, 0])):
        path = tmp_path / str(size)
        path.write_bytes(first_layout(pages.SentPage, size))
        with pages.open_sent(path) as page:
            assert page.view.header.size_bytes == size
            assert [page.view.sent[63][63], page.view.ranks] == [0x01010101] * 2
            assert [page.view.world_rank[63], page.view.met[63][63]] == told


def test_a_field_is_read_by_its_name():
    fd, page = pages.create(pages.BubblePage)
    page.view.iteration, page.view.waits = 1 << 40, 3
    assert (pages.read_field(pages.BubblePage, fd, "iteration"), pages.read_field(pages.BubblePage, fd, "waits")) == (
        1 << 40,
        3,
    )
    os.close(fd)
    old = raw(first_layout(pages.AnswerPage))
    assert pages.read_field(pages.AnswerPage, old, "saved_lease") == 0
    os.close(old)


def test_versions_are_the_headers():
    header = (SOURCE / "pages/include/freeride/pages.h").read_text()
    assert re.findall(r"PAGES_M(?:AJ|IN)OR (\d+)u", header) == [str(pages.MAJOR), str(pages.MINOR)]
    told = dict(re.findall(r"^\| ([a-z]+) \|.*\| (\d+) \|$", (SOURCE / "pages/README.md").read_text(), re.M))
    del told["shim"]  # nothing in Python reads it
    assert told == {name: str(KINDS[name].VERSION_1_BYTES) for name in ("bubble", "bell", "sent", "lease", "answer")}


def test_a_read_only_page_cannot_be_mapped_for_writing():
    fd, _ = pages.create(pages.BubblePage, others_read_only=True)
    with pytest.raises(pages.PageError):
        pages.map_page(pages.BubblePage, fd, writable=True)
    os.close(fd)


def test_history_drops_what_was_overwritten():
    fd, page = pages.create(pages.BubblePage)
    for number in range(pages.HISTORY + 10):
        page.view.history[number % pages.HISTORY].begin_ns = number
        page.view.bubbles = number + 1
    found = pages.finished_bubbles(page)
    assert [number for number, _ in found] == list(range(11, pages.HISTORY + 10))  # 10 may be written over just now
    assert all(record.begin_ns == number for number, record in found)
    assert pages.finished_bubbles(page, after=pages.HISTORY + 8)[0][0] == pages.HISTORY + 8
    os.close(fd)
