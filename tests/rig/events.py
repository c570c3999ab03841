"""Records events of the bus, with pyzmq and msgpack only, as any monitor could: bus/WIRE.md is all it needs to know."""

import threading
import time

import msgpack
import zmq


class Recorder:
    """Listens on a thread of its own from construction until close(), to topics with these prefixes, or to all. The
    list may be read at any time; it only grows."""

    def __init__(self, endpoint, *prefixes):
        self.events = []  # (topic, fields), in order of arrival
        self.lost = 0  # events missed, by the publishers' sequence numbers; right where all topics are listened to
        self._last_seq, self._last_kept = {}, {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # never drop here: memory is bounded by the length of the run
        for prefix in prefixes or ("",):
            self._socket.setsockopt_string(zmq.SUBSCRIBE, prefix)
        self._socket.connect(endpoint)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        while not self._stop.is_set():
            if self._socket.poll(500):
                topic, payload = self._socket.recv_multipart()
                self.take(topic.decode(), msgpack.unpackb(payload))
        self._socket.close(0)

    def take(self, topic, fields):
        """One event. States that the broker repeats for late joiners ("kept") are dropped when they are no news."""
        source, seq = fields["source"], fields["seq"]
        if fields.get("kept"):
            if self._last_seq.get(source, 0) >= seq or self._last_kept.get((topic, source), 0) >= seq:
                return
            self._last_kept[topic, source] = seq
        else:
            if source in self._last_seq:
                self.lost += max(0, seq - self._last_seq[source] - 1)
            self._last_seq[source] = max(seq, self._last_seq.get(source, 0))
        with self._changed:
            self.events.append((topic, fields))
            self._changed.notify_all()

    def all(self, topic_name):
        """Events of one topic, e.g. "bubble.end"."""
        return [fields for topic, fields in self.events[:] if topic.split("/", 1)[0] == topic_name]

    def wait(self, condition, timeout):
        """Waits for events until condition() holds, at most `timeout` seconds; returns its last value."""
        end = time.monotonic() + timeout
        while True:
            value = condition()
            left = end - time.monotonic()
            if value or left <= 0:
                return value
            with self._changed:
                self._changed.wait(min(left, 1.0))

    def close(self):
        self._stop.set()
        self._thread.join()
