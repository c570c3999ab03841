"""Ranks of one training on several hosts: who is elsewhere, and where its hints are to be sent, by training's own store.

Off unless FREERIDE_HOLD_HOSTS=1. A rank tells its host, and the address and port of its hints' socket; the job's key is made by whoever
comes first. All that is a thread's of its own, which takes what is there and waits for nothing: training waits for none of it,
and the hook holds nothing of other hosts until all is known. Without the store nothing is held.
"""

import atexit
import contextlib
import json
import os
import secrets
import socket
import threading
import time

_PREFIX = "freeride/hosts/"  # in training's own store
_ITERATIONS = 2  # then this rank has exchanged messages with all that it will
_PATIENCE_S = 300
_LONGEST_PAUSE_S = 5
_MOST_PEERS = 64


def wanted():
    return os.environ.get("FREERIDE_HOLD_HOSTS") == "1"


def host_id():
    """NCCL's word goes first: it decides which ranks it takes to share a host. Else the running kernel's."""
    for name in ("NCCL_HOSTID", "FREERIDE_HOST_ID"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def own_address():
    """Of this host, as others reach it: the one that its packets to the training's master have."""
    given = os.environ.get("FREERIDE_HINT_ADDRESS")
    if given:
        return given
    master = os.environ.get("MASTER_ADDR") or "127.0.0.1"
    for family, kind, _, _, address in socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0].partition("%")[0]
    raise OSError(f"no address of {master}")


class Hosts:
    """One rank's part. `peers` of iteration_end() are the ranks it has exchanged messages with."""

    def __init__(self, store, rank, port):
        """`port`: of its hints' socket; 0: without hints."""
        self._store, self._rank, self._port = store, rank, port
        self._iterations = 0
        self._found = None  # (key or None, epoch, [(rank, address, port)]) of ranks elsewhere
        self.joined = False
        self._thread, self._stop = None, threading.Event()

    def iteration_end(self, peers, join):
        """Calls join(key, epoch, peers) once it is known who is elsewhere; `key` None: without hints."""
        if self.joined:
            return
        if self._thread is None:
            self._iterations += 1
            if self._iterations >= _ITERATIONS and peers:
                self._thread = threading.Thread(target=self._ask, args=(sorted(peers)[:_MOST_PEERS],), daemon=True)
                atexit.register(self.stop)
                self._thread.start()
        elif self._found is not None:
            key, epoch, elsewhere = self._found
            self.joined = True
            if elsewhere:
                join(key, epoch, elsewhere)

    def stop(self):
        """Asks no more. A thread that is inside the store when the interpreter ends would take the process with it, so this waits for its
        answer, for two seconds at most."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2)

    def _ask(self, peers):
        try:
            self._found = self._exchange(peers)
        except Exception:  # a store that has gone, or knows no compare_set: nothing is held
            pass

    def _exchange(self, peers):
        key = self._store.compare_set(_PREFIX + "key", "", secrets.token_hex(24)).decode() if self._port else None
        own = {"host": host_id(), "address": own_address() if self._port else "", "port": self._port}
        self._store.set(_PREFIX + str(self._rank), json.dumps(own))
        told, end, pause_s = {}, time.monotonic() + _PATIENCE_S, 0.1
        while True:
            for rank in peers:
                # What is there, at once, where a get would wait; "" for who has told nothing so far.
                text = "" if rank in told else self._store.compare_set(_PREFIX + str(rank), "", "").decode()
                if text:
                    told[rank] = json.loads(text)
            if len(told) == len(peers):
                break
            if time.monotonic() > end:
                return None
            if self._stop.wait(pause_s):
                return None
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)  # a thousand ranks ask the same store
        elsewhere = [
            (rank, str(one["address"]), _port(one["port"])) for rank, one in told.items() if one["host"] != own["host"]
        ]
        return (bytes.fromhex(key[:32]), int(key[32:48], 16), elsewhere) if key else (None, 0, elsewhere)


def _port(told):
    """0: it gets no hints."""
    return told if isinstance(told, int) and 0 < told < 65536 else 0
