"""Reads recordings with PyPI's mcap and msgpack alone, as an example and for tests. The format: recorder/README.md.

python recorder/python/recording.py FILE [TOPIC]   prints a line of JSON for each event."""

import json
import sys

import msgpack
from mcap.exceptions import EndOfFile
from mcap.reader import NonSeekingReader


def _integers(data, count):
    """`count` zigzag LEB128 numbers."""
    at = 0
    for _ in range(count):
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte <= 0x7F:
                break
        yield (value >> 1) ^ -(value & 1)


def _column(column, rows, unit, fields, us):
    """A column's values; those of `us` are kept in microseconds, for columns that count from them."""
    if not isinstance(column, list):
        return [column] * rows
    if column[0] == "list":
        values = msgpack.Unpacker(strict_map_key=False)
        values.feed(column[1])
        return list(values)
    _, base, data, *other = column
    values, before = [], 0
    for row, delta in enumerate(_integers(data, rows)):
        before = (us[other[0]][row] if other else before) + base + delta
        values.append(before)
    us[fields] = values
    return [value * unit for value in values]


def rows(message, wall_minus_monotonic_ns):
    """(time in ns since 1970, event) of each row of a message in columns."""
    whole = msgpack.unpackb(message, strict_map_key=False)
    count, us, columns = whole["rows"], {}, {}
    for name, column in whole["fields"].items():
        columns[name] = _column(column, count, 1000 if name.endswith("_ns") else 1, name, us)
    late_us = _column(whole["late_us"], count, 1, "", {})
    clock_us = -(-wall_minus_monotonic_ns // 1000)
    for row in range(count):
        event = {name: values[row] for name, values in columns.items()}
        t_us = (event["t_ns"] + 500) // 1000
        yield (t_us + clock_us + late_us[row]) * 1000, event


class _Whole:
    """A file that has nothing where it has less than is wanted. Then mcap says EndOfFile wherever it is cut."""

    def __init__(self, file):
        self._file = file

    def read(self, size):
        data = self._file.read(size)
        return data if len(data) == size else b""


def events(path):
    """(topic, time in ns since 1970, event) of everything in a file, as it was written. EndOfFile comes behind the last
    one that is whole, where a crash has cut the file or the recorder is writing it."""
    with open(path, "rb") as file:
        clocks = next(
            each.metadata for each in NonSeekingReader(_Whole(file)).iter_metadata() if each.name == "freeride"
        )
    distance = int(clocks["wall_ns"]) - int(clocks["monotonic_ns"])
    with open(path, "rb") as file:
        for schema, channel, message in NonSeekingReader(_Whole(file)).iter_messages(log_time_order=False):
            if schema is not None and schema.name == "freeride.columns":
                for time_ns, event in rows(message.data, distance):
                    yield channel.topic, time_ns, event
            elif channel.message_encoding == "json":
                yield channel.topic, message.log_time, json.loads(message.data)
            else:
                yield channel.topic, message.log_time, msgpack.unpackb(message.data, strict_map_key=False)


if __name__ == "__main__":
    try:
        for topic, time_ns, event in events(sys.argv[1]):
            if topic.startswith(sys.argv[2] if len(sys.argv) > 2 else ""):
                print(json.dumps({"topic": topic, "time_unix_ns": time_ns, **event}, default=str))
    except EndOfFile:
        print(f"{sys.argv[1]} is cut off: these are the events before the cut", file=sys.stderr)
