"""Bubbles as workers publish them, without workers: so many a second, numbered without gaps. Needs pyzmq and msgpack.

    python tests/rig/bubbles.py PUBLISH_ENDPOINT DEVICES BUBBLES_PER_S [SECONDS]

prints a JSON line for each second: what has been published, by source."""

import itertools
import json
import random
import sys
import time

import msgpack
import zmq


class Worker:
    """One device's events, of which nobody says more than that they are numbered and plausible."""

    def __init__(self, rank, suffix):
        self.rank, self.source = rank, f"worker host:cpu-{rank} #{suffix}"
        self.seq, self.iteration, self.wait = 0, 0, 0
        self.random = random.Random(rank)
        self.bubble_ns = 4_000_000 + 100_000 * rank

    def _packed(self, fields):
        self.seq += 1
        envelope = {"v": 1, "source": self.source, "seq": self.seq, "t_ns": time.monotonic_ns(), "kept": False}
        return msgpack.packb({**envelope, **fields})

    def bubble(self):
        """(topic, payload) of a bubble's begin, its end and, once in ten, an iteration."""
        self.wait = self.wait % 10 + 1
        length = max(100_000, int(self.random.gauss(self.bubble_ns, self.bubble_ns / 50)))
        end = time.monotonic_ns()
        begin = end - length
        where = {
            "job": "gpt",
            "device": f"cpu-{self.rank}",
            "replica": 0,
            "stage": self.rank,
            "rank": self.rank,
            "wait": self.wait,
            "iteration": self.iteration,
        }
        harvested = int(length * self.random.uniform(0.85, 0.95))
        yield (
            f"bubble.begin/gpt/{self.rank}",
            self._packed({**where, "begin_ns": begin, "learned_ns": self.bubble_ns}),
        )
        yield (
            f"bubble.end/gpt/{self.rank}",
            self._packed(
                {
                    **where,
                    "type": "B",
                    "begin_ns": begin,
                    "end_ns": end,
                    "learned_ns": self.bubble_ns,
                    "harvested_ns": harvested,
                    "overrun_ns": self.random.randrange(20_000),
                    "leased": True,
                    "holdout": False,
                    "task": f"side-{self.rank}",
                    "side_begin_ns": begin + self.random.randrange(10_000, 40_000),
                    "side_end_ns": end + self.random.randrange(20_000),
                }
            ),
        )
        if self.wait == 10:
            self.iteration += 1
            yield (
                f"training.iteration/gpt/{self.rank}",
                self._packed(
                    {
                        "job": "gpt",
                        "device": f"cpu-{self.rank}",
                        "rank": self.rank,
                        "stage": self.rank,
                        "replica": 0,
                        "iteration": self.iteration,
                        "begin_ns": end - 100_000_000,
                        "end_ns": end,
                        "bubble_ns": 10 * self.bubble_ns,
                        "harvested_ns": 9 * self.bubble_ns,
                        "holdout": False,
                        "harvested": True,
                        "transitions": False,
                    }
                ),
            )


def main(endpoint, devices, per_s, seconds=0.0):
    devices, per_s, seconds = int(devices), float(per_s), float(seconds)
    socket = zmq.Context.instance().socket(zmq.PUB)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.connect(endpoint)
    time.sleep(1)  # the broker subscribes
    workers = [Worker(rank, f"{time.monotonic_ns():x}") for rank in range(devices)]
    begin = time.monotonic()
    told = begin
    for number in itertools.count():
        now = time.monotonic()
        if now >= told:
            told += 1
            print(json.dumps({worker.source: worker.seq for worker in workers}), flush=True)
        if seconds and now - begin >= seconds:
            break
        time.sleep(max(0.0, begin + number / (devices * per_s) - now))
        for topic, payload in workers[number % devices].bubble():
            socket.send_multipart([topic.encode(), payload])
    print(json.dumps({worker.source: worker.seq for worker in workers}), flush=True)
    time.sleep(1)  # what is queued


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        pass
