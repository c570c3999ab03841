"""A TCP link as bad networks make it, in user space: bad_link.py PORT HOST PORT, from a port of this host's loopback.

What passes is late by --delay-ms and goes at --bytes-per-s at most, each way, over all connections. Every --stall-s seconds or so nothing passes for a
while, and every --break-s seconds or so the connection is reset, as one is of which too much was lost. 0: never."""

import argparse
import asyncio
import contextlib
import random
import socket
import struct

CHUNK = 2048
LEAST_NAP_S = 0.002  # shorter ones take longer than they say
STALLS_S = (0.3, 2.0)


class Link:
    def __init__(self, options):
        self.options, self.chosen = options, random.Random(7)
        self.open_from = 0.0  # nothing passes before
        self.free_from = {"there": 0.0, "back": 0.0}  # what has passed takes the link until then

    def every(self, mean_s):
        return self.chosen.expovariate(1 / mean_s)

    async def stall(self):
        while self.options.stall_s > 0:
            await asyncio.sleep(self.every(self.options.stall_s))
            self.open_from = asyncio.get_running_loop().time() + self.chosen.uniform(*STALLS_S)

    async def take(self, size, way):
        """Returns when the link has time for what comes next."""
        if self.options.bytes_per_s > 0:
            now = asyncio.get_running_loop().time()
            self.free_from[way] = max(now, self.free_from[way]) + size / self.options.bytes_per_s
            if self.free_from[way] - now > LEAST_NAP_S:
                await asyncio.sleep(self.free_from[way] - now)

    async def pump(self, reader, writer, way):
        """Two tasks, so that a delay does not bound what passes."""
        queue, loop = asyncio.Queue(maxsize=256), asyncio.get_running_loop()

        async def read():
            while data := await reader.read(CHUNK):
                await queue.put((loop.time() + self.options.delay_ms / 1e3, data))
            await queue.put((0, b""))

        async def write():
            while True:
                due, data = await queue.get()
                if not data:
                    return
                await asyncio.sleep(max(due, self.open_from) - loop.time())
                writer.write(data)
                await writer.drain()
                await self.take(len(data), way)

        await asyncio.gather(read(), write())

    async def connection(self, reader, writer):
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(self.options.host, self.options.to)
            writers.append(far_writer)
            pumps = [
                asyncio.create_task(self.pump(reader, far_writer, "there")),
                asyncio.create_task(self.pump(far_reader, writer, "back")),
            ]
            longest = self.every(self.options.break_s) if self.options.break_s > 0 else None
            _, left = await asyncio.wait(pumps, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
            for pump in left:
                pump.cancel()
        except OSError:
            pass
        finally:
            for one in writers:
                with contextlib.suppress(OSError, AttributeError):  # reset, not closed in good order
                    linger = struct.pack("ii", 1, 0)
                    one.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                one.close()

    async def run(self):
        server = await asyncio.start_server(self.connection, "127.0.0.1", self.options.port)
        async with server:
            await asyncio.gather(server.serve_forever(), self.stall())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("host")
    parser.add_argument("to", type=int)
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--bytes-per-s", type=float, default=0)
    parser.add_argument("--stall-s", type=float, default=0)
    parser.add_argument("--break-s", type=float, default=0)
    asyncio.run(Link(parser.parse_args()).run())


if __name__ == "__main__":
    main()
