"""Resident memory: after gigabytes in and out, and while slow consumers ask for all that they may have."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from bench import librdkafka
from bench.brokers import Server, both, load, new_topic, resident
from bench.kafka import BROKER, describe
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class

_GB: Final = float(os.environ.get("SEGLOG_BENCH_GB", "1"))
_RECORD: Final = 1000
_SLOW: Final = 20
_PARTITIONS: Final = 60
_FETCH_MAX_BYTES: Final = 50 << 20
_PARTITION_MAX_BYTES: Final = 1 << 20
"""The defaults of Kafka's consumer."""
_SECONDS: Final = 5
_FETCH_VERSION: Final = 12


def main() -> None:
    print(f"{describe(BROKER)}; {load()}")
    with both() as servers:
        for name, server in servers.items():
            print(f"  {name:7} at its start {_mb(resident(server.pid))}", flush=True)
        count = int(_GB * 1e9 / _RECORD)
        for name, server in servers.items():
            topic = new_topic(server)
            librdkafka.produce(server.bootstrap, topic, count, _RECORD, {"batch.size": "16384", "linger.ms": "5"})
            librdkafka.consume(server.bootstrap, topic, count, {})
            print(f"  {name:7} after {_GB:g} GB in and out {_mb(resident(server.pid))}", flush=True)
        for name, server in servers.items():
            topic = new_topic(server, _PARTITIONS)
            librdkafka.produce(server.bootstrap, topic, 1500, _RECORD, {}, partitions=range(_PARTITIONS))
            before = resident(server.pid)
            with ExitStack() as stack:
                for _ in range(_SLOW):
                    stack.enter_context(_slow_consumer(server, topic))
                most = max(_watched(server))
            print(f"  {name:7} with {_SLOW} slow consumers {_mb(before)} -> {_mb(most)}; {load()}", flush=True)


@contextmanager
def _slow_consumer(server: Server, topic: str) -> Iterator[socket.socket]:
    """One that has asked for all it may have of all partitions."""
    partition = {"fetch_offset": 0, "partition_max_bytes": _PARTITION_MAX_BYTES}
    body = write_message(
        request_class(ApiKey.FETCH, _FETCH_VERSION),
        {
            "max_bytes": _FETCH_MAX_BYTES,
            "topics": [{"topic": topic, "partitions": [{"partition": at, **partition} for at in range(_PARTITIONS)]}],
        },
    )
    frame = struct.pack(">hhih", ApiKey.FETCH, _FETCH_VERSION, 1, -1) + b"\0" + body
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        yield connection


def _watched(server: Server) -> Iterator[int]:
    """The server's memory, looked at while the consumers take nothing beyond what their kernels do."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        yield resident(server.pid)
        time.sleep(0.05)  # the time between two samples


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
