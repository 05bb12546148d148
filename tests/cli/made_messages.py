"""Random records of Kafka's internal topics, written by the schemas that `seglog dump` reads them by. Seeded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from random import Random

from seglog.protocol.wire import uvarint
from seglog.records import kafka_schemas as schemas
from seglog.records.kafka_messages import Field, Message, parse_schemas
from seglog.records.record import NewRecord

_INTEGERS = {"int8": (">b", 7), "int16": (">h", 15), "int32": (">i", 31), "int64": (">q", 63), "uint16": (">H", 16)}
_FLOATS = (0.0, 1.0, 1024.0, 1e7, 1.5e-5, 123456.789, -2.5, 1e300)


class Writer:
    """Writes messages of any schema with random contents."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def message(self, message: Message, version: int) -> bytes:
        flexible = version >= message.flexible
        data = b"".join(
            self._field(field, version, flexible)
            for field in message.fields
            if field.tag is None and field.is_in(version)
        )
        if not flexible:
            return data
        tagged = [
            (field.tag, self._field(field, version, flexible))
            for field in message.fields
            if field.tag is not None and field.is_in(version) and self._random.random() < 0.6
        ]
        if self._random.random() < 0.15:
            tagged.append((40, self._random.randbytes(3)))
        tagged.sort()
        return data + uvarint(len(tagged)) + b"".join(uvarint(tag) + _sized(part) for tag, part in tagged)

    def _field(self, field: Field, version: int, flexible: bool) -> bytes:
        null = field.nullable and self._random.random() < 0.3
        if field.array:
            if null:
                return uvarint(0) if flexible else struct.pack(">i", -1)
            count = self._random.randrange(3)
            head = uvarint(count + 1) if flexible else struct.pack(">i", count)
            return head + b"".join(self._one(field, version, flexible) for _ in range(count))
        if isinstance(field.type, Message) and field.nullable:
            if field.tag is not None:
                return uvarint(0) if null else uvarint(1) + self._one(field, version, flexible)
            return b"\xff" if null else b"\x01" + self._one(field, version, flexible)
        return self._one(field, version, flexible)

    def _one(self, field: Field, version: int, flexible: bool) -> bytes:
        random, type_ = self._random, field.type
        if isinstance(type_, Message):
            return self.message(type_, version)
        if type_ in _INTEGERS:
            code, bits = _INTEGERS[type_]
            least = 0 if type_ == "uint16" else -1
            return struct.pack(code, random.choice([0, 1, least, 5, (1 << bits) - 1, random.randrange(1 << bits)]))
        if type_ == "bool":
            return bytes([random.randrange(2)])
        if type_ == "float64":
            return struct.pack(">d", random.choice(_FLOATS))
        if type_ == "uuid":
            return random.choice([bytes(16), random.randbytes(16)])
        if field.nullable and random.random() < 0.3:
            return uvarint(0) if flexible else struct.pack(">h" if type_ == "string" else ">i", -1)
        data = (
            self._text()
            if type_ == "string"
            else random.choice([random.randbytes(random.randrange(9)), self._member()])
        )
        if flexible:
            return uvarint(len(data) + 1) + data
        return struct.pack(">h" if type_ == "string" else ">i", len(data)) + data

    def _text(self) -> bytes:
        random = self._random
        if random.random() < 0.1:
            return b"consumer"
        return "".join(random.choice('abé"\\\n\x01🦀/') for _ in range(random.randrange(6))).encode()

    def _member(self) -> bytes:
        """The bytes of a consumer's subscription or assignment, in a version that may not exist."""
        message = self._random.choice(list(parse_schemas(schemas.CONSUMER_PROTOCOL).values()))
        version = self._random.randrange(-1, 5)
        return struct.pack(">h", version) + self.message(message, version)


def coordinator_record(random: Random, keys: str, values: str) -> NewRecord:
    """A record of a coordinator's topic: whole, or of an unknown type or version, a tombstone, or damaged."""
    writer = Writer(random)
    type_ = random.choice(list(parse_schemas(keys)))
    message = parse_schemas(values)[type_]
    version = (
        random.randrange(message.highest + 1)
        if random.random() < 0.85
        else random.choice([message.highest + 1, -1, 99])
    )
    shown_type = type_ if random.random() < 0.95 else random.choice([9, 18, 24, 99, -1])
    key = struct.pack(">h", shown_type) + writer.message(parse_schemas(keys)[type_], 0)
    value = struct.pack(">h", version) + writer.message(message, version)
    return NewRecord(
        None if random.random() < 0.1 else _maybe_damaged(random, value, 0.25),
        key=_maybe_damaged(random, key, 0.15),
        timestamp=1,
    )


def metadata_record(random: Random) -> NewRecord:
    """A record of ``__cluster_metadata``."""
    message = random.choice(list(parse_schemas(schemas.METADATA_RECORDS).values()))
    version = random.randrange(message.highest + 1) if random.random() < 0.9 else message.highest + 1
    frame = 1 if random.random() < 0.95 else random.choice([0, 2, 40000])
    type_ = message.id if random.random() < 0.95 else 6
    value = uvarint(frame) + uvarint(type_) + uvarint(version) + Writer(random).message(message, version)
    return NewRecord(_maybe_damaged(random, value, 0.25), timestamp=1)


TOPICS: Mapping[str, Callable[[Random], NewRecord]] = {
    "--offsets-decoder": lambda random: coordinator_record(random, schemas.GROUP_KEYS, schemas.GROUP_VALUES),
    "--transaction-log-decoder": lambda random: coordinator_record(
        random, schemas.TRANSACTION_KEYS, schemas.TRANSACTION_VALUES
    ),
    "--share-group-state-decoder": lambda random: coordinator_record(random, schemas.SHARE_KEYS, schemas.SHARE_VALUES),
    "--cluster-metadata-decoder": metadata_record,
}
"""The decoders of `seglog dump`, and a maker of records for each."""


def _maybe_damaged(random: Random, data: bytes, chance: float) -> bytes:
    if random.random() >= chance or not data:
        return data
    changed = bytearray(data)
    kind = random.randrange(3)
    if kind == 0:
        changed[random.randrange(len(changed))] = random.choice([0, 1, 255, 127, 128, random.randrange(256)])
    elif kind == 1:
        del changed[random.randrange(len(changed)) :]
    else:
        changed += random.randbytes(random.randrange(4))
    return bytes(changed)


def _sized(data: bytes) -> bytes:
    return uvarint(len(data)) + data
