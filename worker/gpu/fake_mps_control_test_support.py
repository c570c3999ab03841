#!/usr/bin/env -S python3 -SIu
"""Plays nvidia-cuda-mps-control for tests, on machines without a GPU: the same words, sockets and processes, no GPU behind them.

$FAKE_MPS: "deaf" (answers no command), "lax" (forgets limits), "mute" (makes no socket), "no-server" (starts none).
"""

import ctypes
import os
import select
import signal
import socket
import sys

folder, mode = os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ.get("FAKE_MPS", "")
path = os.path.join(folder, "control")


def follow_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def shown(value):
    """As the real one does: 1408M is shown as 1G."""
    return f"{int(value[:-1]) >> 10}G" if value.endswith("M") and int(value[:-1]) >= 1024 else value


def daemon():
    with open(os.path.join(folder, "nvidia-cuda-mps-control.pid"), "w") as file:
        file.write(str(os.getpid()))
    listener = socket.socket(socket.AF_UNIX)
    if mode != "mute":
        listener.bind(path)
        listener.listen()
    values, servers = {}, []
    while True:
        select.select([listener], [], [], 0.05)
        for pid in list(servers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                servers.remove(pid)
        if not select.select([listener], [], [], 0)[0]:
            continue
        peer, _ = listener.accept()
        words = peer.recv(4096).decode().split()
        answer = ""
        if words[0].startswith("set_default"):
            values[words[0][4:]] = words[-1]
        elif words[0].startswith("get_default"):
            answer = "0" if mode == "lax" else shown(values.get(words[0][4:], "unset"))
        elif words[0] == "start_server" and mode != "no-server":
            assert int(words[2]) == os.getuid(), "a server for another user"
            pid = os.fork()
            if pid == 0:
                follow_parent()
                os.execv("/bin/sleep", ["nvidia-cuda-mps-server", "infinity"])
            servers.append(pid)
        elif words[0] == "get_server_list":
            answer = "\n".join(map(str, servers))
        elif words[0] == "get_client_list":
            try:
                with open(os.path.join(folder, "clients")) as file:  # what a test says they are
                    answer = file.read()
            except FileNotFoundError:
                pass
        if mode != "deaf":
            peer.sendall((answer + "\n").encode() if answer else b"")
            peer.close()
        else:
            values.setdefault("kept", []).append(peer)


def client():
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect(path)
    except OSError:
        print("Cannot find MPS control daemon process")
        return 1
    peer.sendall(sys.stdin.read().encode())
    while chunk := peer.recv(4096):
        sys.stdout.write(chunk.decode())
    return 0


if sys.argv[1:] == ["-f"]:
    daemon()
sys.exit(client())
