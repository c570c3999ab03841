"""The recorder, told its events by hand."""

import threading

from rig.events import Recorder


class Deaf(Recorder):
    """A recorder that is told its events."""

    def __init__(self):
        self.events, self.lost, self._last_seq, self._last_kept, self._changed = [], 0, {}, {}, threading.Condition()


def test_recorder_counts_gaps_per_source_but_not_repeats_of_kept_states():
    recorder = Deaf()
    for source, seq, kept in [
        ("a", 5, True),
        ("a", 9, False),
        ("b", 1, False),
        ("a", 10, False),
        ("a", 5, True),
        ("b", 4, False),
        ("a", 12, False),
        ("a", 12, True),
    ]:
        recorder.take("task.state/x", {"source": source, "seq": seq, "kept": kept})
    assert recorder.lost == 3  # b: 2 and 3; a: 11
    assert [(e["source"], e["seq"]) for _, e in recorder.events] == [
        ("a", 5),
        ("a", 9),
        ("b", 1),
        ("a", 10),
        ("b", 4),
        ("a", 12),
    ]
