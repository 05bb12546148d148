"""Two codecs that others wrote, kafka-python's and aiokafka's, behind one face: the judges of ours.

kafka-python has no snappy here (it wants another library); neither has lz4 in magic 0. Kafka's own Java classes judge
all of them in `tests/interop/test_codecs.py`.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka.record import default_records as aio_default
from aiokafka.record import legacy_records as aio_legacy

from seglog.records.compression import Codec
from seglog.records.record import NewRecord, Record

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as kp_murmur2
    from kafka.record import default_records as kp_default
    from kafka.record import legacy_records as kp_legacy

_ROOM: Final = 1 << 24


def as_bytes(data: object) -> bytes | None:
    """A key or value as bytes, from any type that `NewRecord` allows."""
    if data is None:
        return None
    assert isinstance(data, (bytes, bytearray, memoryview))
    return bytes(data)


class Producer(NamedTuple):
    """The producer of a batch; all fields are -1 if it has none."""

    id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False


class Peer(NamedTuple):
    """One of the two libraries, by name in test ids."""

    name: str
    aio: bool

    def __repr__(self) -> str:
        return self.name

    def codecs(self, magic: int) -> list[Codec]:
        """Codecs that the library has for messages of ``magic``."""
        without = set() if self.aio else {Codec.SNAPPY}
        without |= {Codec.ZSTD} if magic < 2 else set()
        without |= {Codec.LZ4} if magic < 1 else set()
        return [codec for codec in Codec if codec not in without]

    def build(self, records: Sequence[NewRecord], codec: int, producer: Producer) -> bytes:
        """A batch of magic 2. It stays uncompressed where compression gains nothing."""
        arguments = (2, codec, producer.transactional, producer.id, producer.epoch, producer.sequence, _ROOM)
        builder = (aio_default if self.aio else kp_default).DefaultRecordBatchBuilder(*arguments)
        for delta, (value, key, timestamp, headers) in enumerate(records):
            pairs = [(name, as_bytes(content)) for name, content in headers]
            builder.append(delta, timestamp, as_bytes(key), as_bytes(value), pairs)
        return bytes(builder.build())

    def read(self, batch: bytes) -> list[Record]:
        """The records of a batch of magic 2, without their sequences; its CRC is checked."""
        parsed = (aio_default if self.aio else kp_default).DefaultRecordBatch(batch)
        assert parsed.validate_crc()
        return [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in parsed]

    def build_legacy(self, records: Sequence[NewRecord], magic: int, codec: int, first: int = 0) -> bytes:
        """Messages at ``first`` and on; or one wrapper whose offset is 0, as producers send it."""
        builder = (aio_legacy if self.aio else kp_legacy).LegacyRecordBatchBuilder(magic, codec, _ROOM)
        for delta, (value, key, timestamp, _) in enumerate(records):
            builder.append(first + delta, timestamp, as_bytes(key), as_bytes(value))
        return bytes(builder.build())

    def read_legacy(self, message: bytes, magic: int) -> list[Record]:
        """The records of one message, deep; its CRC is checked."""
        parsed = (aio_legacy if self.aio else kp_legacy).LegacyRecordBatch(message, magic)
        assert parsed.validate_crc()
        return [Record(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value) for r in parsed]


PEERS: Final = [Peer("kafka-python", aio=False), Peer("aiokafka", aio=True)]


def seal_legacy(message: bytearray) -> bytes:
    """The message with the CRC-32 of its bytes as they are."""
    message[12:16] = struct.pack(">I", zlib.crc32(message[16:]))
    return bytes(message)


def wrapper(
    magic: int, codec: int, offset: int, value: bytes | None, *, timestamp: int = 0, append: bool = False
) -> bytes:
    """A message by hand: ``value`` is what a codec made of messages, or anything."""
    attributes = codec | (8 if append else 0)
    body = struct.pack(">Ibb", 0, magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    body += struct.pack(">ii", -1, -1 if value is None else len(value)) + (value or b"")
    return seal_legacy(bytearray(struct.pack(">qi", offset, len(body)) + body))


def kafka_python_murmur2(key: bytes) -> int:
    """A signed number of 32 bits or the same without its sign, as the library likes."""
    return kp_murmur2(key)
