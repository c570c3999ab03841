"""Publishes what the workers of many devices would, over the real bus: for pictures and benchmarks."""

import threading
import time

import msgpack
import zmq


class Feeder:
    """`ranks` of one job, a device and a worker each, `rate` bubbles a second in all, two iterations a second and a side
    task for every fourth rank. On a thread of its own from `with` on; where it `leaves`, the ranks are gone at its end."""

    def __init__(self, run_dir, ranks=64, rate=6400, job="synthetic", leaves=False):
        self.ranks, self.rate, self.job = ranks, rate, job
        self.leaves = leaves
        self.sent = 0
        self._endpoint = f"ipc://{run_dir}/publish.sock"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._seq = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _say(self, socket, topic, fields):
        self._seq += 1
        envelope = {"v": 1, "source": "feeder", "seq": self._seq, "t_ns": time.monotonic_ns(), "kept": False}
        socket.send_multipart([topic.encode(), msgpack.packb({**envelope, **fields})])

    def _place(self, rank):
        return {"job": self.job, "device": f"GPU-{rank:04}", "rank": rank, "stage": rank % 16, "replica": rank // 16}

    def _states(self, socket, training="active"):
        for rank in range(self.ranks):
            place, worker = self._place(rank), f"host{rank // 8}:GPU-{rank:04}"
            self._say(
                socket,
                f"worker.state/{worker}",
                {
                    "worker": worker,
                    "host": f"host{rank // 8}",
                    "device": place["device"],
                    "state": "up",
                    "job": self.job,
                    "stage": place["stage"],
                    "replica": place["replica"],
                    "memory_bytes": 150 << 30,
                    "usable_bytes": 40 << 30,
                    "tasks": 1,
                },
            )
            self._say(
                socket,
                f"training.state/{self.job}/{rank}",
                {**place, "worker": worker, "framework": "synthetic", "state": training, "stages": 16},
            )
            if rank % 4 == 0:
                self._say(
                    socket,
                    f"task.state/task-{rank}",
                    {
                        "task": f"task-{rank}",
                        "plugin": "pagerank.so",
                        "job": self.job,
                        "worker": worker,
                        "state": "RUNNING",
                        "stage": place["stage"],
                        "replica": place["replica"],
                    },
                )
        measures = {"job": self.job, "stages": 16, "iterations": 1000, "holdout_iterations": 50, "measured": True}
        measures |= {"time_increase_pct": 0.4, "time_increase_ci95_low_pct": 0.1, "time_increase_ci95_high_pct": 0.7}
        measures |= {"iteration_ms": 500, "bubble_share_pct": 30, "harvested_share_pct": 70, "overrun_p50_us": 20}
        measures |= {"overrun_p99_us": 90, "budget_pct": 1, "duty_pct": 100}
        self._say(socket, f"training.measures/{self.job}", measures)

    def _publish(self):
        socket = zmq.Context.instance().socket(zmq.PUB)
        socket.setsockopt(zmq.SNDHWM, 100_000)
        socket.connect(self._endpoint)
        began = time.monotonic()
        bubbles = iterations = 0
        next_states = began
        while not self._stop.wait(0.01):
            now = time.monotonic()
            if now >= next_states:  # often: who joins later, and a broker that has just been met, know them too
                self._states(socket)
                next_states = now + 2
            while bubbles < (now - began) * self.rate:
                rank, turn = bubbles % self.ranks, bubbles // self.ranks
                self._bubble(socket, rank, turn)
                bubbles += 1
            while iterations < (now - began) * 2 * self.ranks:
                self._iteration(socket, iterations % self.ranks, iterations // self.ranks)
                iterations += 1
            self.sent = bubbles
        if self.leaves:
            self._states(socket, "gone")
        socket.close(1000)

    def _bubble(self, socket, rank, turn):
        end = time.monotonic_ns()
        period = int(1e9 * self.ranks / self.rate)
        length = int(period * (0.25 + 0.05 * (rank % 16) / 4))
        begin, held_out = end - length, turn // 200 % 8 == 0
        leased = rank % 4 == 0 and not held_out
        side = int(length * 0.8) if leased else 0
        fields = {**self._place(rank), "wait": turn % 8 + 1, "iteration": turn // 50, "type": "B"}
        fields |= {"begin_ns": begin, "end_ns": end, "learned_ns": length, "harvested_ns": side}
        fields |= {"overrun_ns": 200_000 if leased and turn % 40 == 0 else 0, "leased": leased, "holdout": held_out}
        fields |= {"task": f"task-{rank}" if leased else "", "side_begin_ns": begin + length // 20 if leased else 0}
        fields |= {"side_end_ns": begin + length // 20 + side if leased else 0}
        self._say(socket, f"bubble.end/{self.job}/{rank}", fields)

    def _iteration(self, socket, rank, number):
        end, held_out = time.monotonic_ns(), number % 8 == 0
        harvested = 0 if held_out or rank % 4 else 110_000_000
        self._say(
            socket,
            f"training.iteration/{self.job}/{rank}",
            {
                **self._place(rank),
                "iteration": number,
                "begin_ns": end - 500_000_000,
                "end_ns": end,
                "bubble_ns": 150_000_000,
                "harvested_ns": harvested,
                "holdout": held_out,
                "harvested": harvested > 0,
            },
        )
