"""Prints every bubble of every training job on this host. Needs pyzmq and msgpack."""

import os

import msgpack
import zmq

events = zmq.Context().socket(zmq.SUB)
events.subscribe("bubble.end/")
events.connect("ipc://{}/events.sock".format(os.environ.get("FREERIDE_RUN_DIR", "/run/freeride")))
while True:
    topic, payload = events.recv_multipart()
    e = msgpack.unpackb(payload)
    print(
        "%s stage %d: %.2f ms, harvested %.2f ms"
        % (e["job"], e["stage"], (e["end_ns"] - e["begin_ns"]) / 1e6, e["harvested_ns"] / 1e6),
        flush=True,
    )
