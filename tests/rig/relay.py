"""python -m rig.relay FROM TO: takes connections at the UNIX socket FROM and hands every byte on to the one at TO, and
back. Stopped (SIGSTOP) it is a link that is lost and holds up what was on its way; ended, one that is gone."""

import contextlib
import os
import socket
import sys
import threading


def pump(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def serve(name, target):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        while True:
            near, _ = listener.accept()
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(target)
            except OSError:  # nobody is there now
                near.close()
                far.close()
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()


if __name__ == "__main__":
    serve(*sys.argv[1:])
