"""Prints every bubble of every training job on this host. Needs pyzmq and msgpack."""

import os

import msgpack
import zmq

events = zmq.Context().socket(zmq.SUB)
events.subscribe("bubble.end/")
events.connect("ipc://{}/events.sock".format(os.environ.get("FREERIDE_RUN_DIR", "/run/freeride")))
while True:
    e = msgpack.unpackb(events.recv_multipart()[1])  # [0] is the topic
    length_ms, harvested_ms = (e["end_ns"] - e["begin_ns"]) / 1e6, e["harvested_ns"] / 1e6
    print(f"{e['job']} stage {e['stage']}: {length_ms:.2f} ms, harvested {harvested_ms:.2f} ms", flush=True)
