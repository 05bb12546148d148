"""Malformed and malicious requests, sent to a real Kafka and to seglog: both answer alike, or both stay silent."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator
from functools import partial

import pytest

from seglog.protocol.apis import APIS, ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.hostile_records import MALFORMED, sequenced, sequences
from tests.broker.served_broker import framed
from tests.kafka import KafkaNode
from tests.kit.waiting import SECONDS, wait_until

_numbers = itertools.count()


@pytest.fixture
def wires(kafka: KafkaNode, ours: RunningNode) -> Iterator[tuple[Wire, Wire]]:
    with Wire(kafka.bootstrap) as real, Wire(ours.bootstrap) as mine:
        yield real, mine


STRICTER = {
    **dict.fromkeys(("a key of -2 bytes", "an offset twice", "an offset that is not the next"), (0, 87)),
    **dict.fromkeys([name for name in MALFORMED if "that is none" in name], (-1, 87)),
    **dict.fromkeys(("gzip that ends", "zstd that says it is gzip", "snappy of 4 GB"), (-1, 87)),
}
"""Kafka reads what its writers never make; and it does not expect bytes that cannot be decompressed, and says so."""


def make_topic(wires: tuple[Wire, Wire], **config: str) -> str:
    """Create the topic on both; ours examines every record, as Kafka does."""
    name = f"hostile-{next(_numbers)}"
    for wire, own in zip(wires, ({}, {"seglog.validate.records": "true"}), strict=True):
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        configs += [{"name": key, "value": value} for key, value in own.items()]
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
        answer = wire.ask(ApiKey.CREATE_TOPICS, 4, topics=[topic], timeout=30_000, validate_only=False)
        assert answer.topics[0].error_code == 0
        wait_until(partial(_is_led, wire, name), f"a leader of {name}")
    return name


def _is_led(wire: Wire, topic: str) -> bool:
    """Kafka's broker learns of a topic behind its controller, and tells of it before it has made its log."""
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    answer = wire.ask(ApiKey.LIST_OFFSETS, 4, replica_id=-1, isolation_level=0, topics=asked)
    return not answer.topics[0].partitions[0].error_code


def produce(wire: Wire, topic: str, records: bytes) -> int:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    answer = wire.ask(ApiKey.PRODUCE, 9, acks=-1, timeout=30_000, topic_data=data)
    return int(answer.responses[0].partition_responses[0].error_code)


def test_malformed_records(wires: tuple[Wire, Wire]) -> None:
    topic = make_topic(wires)
    real, mine = wires
    found = {name: (produce(real, topic, data), produce(mine, topic, data)) for name, data in MALFORMED.items()}
    assert {name: codes for name, codes in found.items() if codes[0] != codes[1]} == STRICTER


def test_sequences_that_overlap(wires: tuple[Wire, Wire]) -> None:
    topic = make_topic(wires)
    for wire in wires:
        codes = [produce(wire, topic, sequenced(77, base, count)) for base, count, _ in sequences()]
        assert codes == [code for _, _, code in sequences()]


def outcome(bootstrap: str, sent: bytes, seconds: float) -> str:
    """How a server reacts to these bytes: ``closed``, ``answer``, or ``waits`` (nothing within ``seconds``)."""
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        connection.settimeout(seconds)
        try:
            connection.sendall(sent)
            return "answer" if connection.recv(4) else "closed"
        except TimeoutError:
            return "waits"
        except ConnectionError:
            return "closed"


def head(key: int, version: int, tail: bytes = b"\xff\xff") -> bytes:
    return struct.pack(">hhi", key, version, 1) + tail


META = APIS[ApiKey.METADATA].high
FRAMES = {
    "a negative size": struct.pack(">i", -1) + head(3, 1),
    "2 GiB": struct.pack(">i", 2**31 - 1) + head(0, 9),
    "half a frame": framed(head(3, 1) + bytes(4))[:-2],
    "half a size": b"\0\0",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "an API that is not there": framed(head(9999, 0)),
    "a version that is not there": framed(head(3, 99)),
    "a version before all": framed(head(3, -1)),
    "ApiVersions of a version to come": framed(head(18, 99, b"\xff\xff\0")),
    "Produce before the served versions": framed(head(0, 2)),
    "a client id that is longer than the rest": framed(head(3, 1, b"\x00\x50")),
    "an array of 2^31 - 1": framed(head(3, 1) + b"\x7f\xff\xff\xff"),
    "bytes after the end": framed(head(3, 1) + bytes(4) + b"xyz"),
    "a string that is null": framed(head(3, 1) + b"\0\0\0\1\xff\xff"),
    "tagged fields that are not known": framed(head(3, META, b"\xff\xff\1\x05\1x") + b"\1\0\0\0"),
    "20,000,000 tagged fields": framed(head(3, META, b"\xff\xff\x80\xda\xc4\x09") + b"\1\0\0\0"),
    "a varint without an end": framed(head(3, META, b"\xff\xff" + b"\xff" * 12)),
}


UNFINISHED = {"half a frame", "half a size"}
"""Nobody does anything for them: one who is slow is not told from one who waits, and need not be. To all others
something is done, however late."""

BELOW_NULL = {
    "a client id of -2 bytes": framed(head(3, 1, b"\xff\xfe") + bytes(4)),
    "an array of -2": framed(head(3, 1) + b"\xff\xff\xff\xfe"),
}


@pytest.mark.parametrize("name", BELOW_NULL)
def test_lengths_below_that_of_null(kafka: KafkaNode, ours: RunningNode, name: str) -> None:
    """To Kafka all negative lengths are null."""
    assert [outcome(node.bootstrap, BELOW_NULL[name], SECONDS) for node in (kafka, ours)] == ["answer", "closed"]


@pytest.mark.parametrize("name", FRAMES)
def test_frames(kafka: KafkaNode, ours: RunningNode, name: str) -> None:
    seconds = 1.0 if name in UNFINISHED else SECONDS
    theirs = outcome(kafka.bootstrap, FRAMES[name], seconds)
    assert (theirs == "waits") == (name in UNFINISHED)
    assert outcome(ours.bootstrap, FRAMES[name], seconds) == theirs
