"""Requests of every API and version, made by chance from kio's schemas: well-formed ones that mean nothing, and ones
that are not well-formed. The bytes are written here, by neither our code nor kio's: both refuse what is nonsense."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.schema import FieldSpec, fields_of, request_class
from seglog.protocol.wire import uvarint
from seglog.records.batch import BATCH_OVERHEAD, read_header
from seglog.records.record import NewRecord, encode_batch
from tests.records.made import batch_of

TOPICS: Final = (
    *("fuzz-a", "fuzz-b", "fuzz.c", "quiet", "no-such-topic"),
    *("__consumer_offsets", "__transaction_state"),
)
GROUPS: Final = ("fuzz-g", "fuzz-h", "fuzz-none")
TRANSACTIONAL_IDS: Final = ("fuzz-t", "fuzz-u")
STRANGE: Final = ("", " ", "..", "a/b", "\0", "x" * 249, "x" * 300, "ж" * 200, "*", "fuzz-a\n", "'; --", "%s%n", "-1")
KEYS: Final = (
    "retention.ms",
    "cleanup.policy",
    "segment.bytes",
    "max.message.bytes",
    "compression.type",
    "message.timestamp.type",
    "log.retention.ms",
    "no.such.key",
)
VALUES: Final = (
    "-1",
    "0",
    "1",
    "100000",
    "9223372036854775807",
    "compact",
    "delete",
    "delete,compact",
    "zstd",
    "producer",
)
_WHOLE: Final[Mapping[str, tuple[str, int]]] = {
    "int8": (">b", 8),
    "int16": (">h", 16),
    "error_code": (">h", 16),
    "int32": (">i", 32),
    "timedelta_i32": (">i", 32),
    "int64": (">q", 64),
    "timedelta_i64": (">q", 64),
    "datetime_i64": (">q", 64),
}
HEADER: Final = ("attributes", "last_offset_delta", "base_timestamp", "producer_id", "base_sequence", "records_count")
_SMALL: Final = ("timeout", "timeout_ms", "max_wait", "max_wait_ms", "session_timeout", "rebalance_timeout")
"""How long something may take is small here: what waits for long is another test's matter."""
_HOSTILE: Final = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\xff" * 12,
    b"\x7f\xff",
    b"\xff\xfe",
    b"\x00" * 8,
    b"\x80\x89\x7a",  # 2,000,000
)


class Requests:
    """Makes requests, all that it makes by ``rng``. ``ids`` are those of topics that there are."""

    def __init__(self, rng: Random, ids: Sequence[uuid.UUID] = ()) -> None:
        self.rng = rng
        self.ids = tuple(ids)
        self.members: list[str] = []

    def frame(self, key: int, version: int, correlation_id: int) -> bytes:
        """A whole request without its size."""
        return self.header(key, version, correlation_id) + self.message(request_class(key, version))

    def header(self, key: int, version: int, correlation_id: int) -> bytes:
        name = self.rng.choice((b"fuzz", b"", None, b"x" * 300))
        head = struct.pack(">hhih", key, version, correlation_id, -1 if name is None else len(name)) + (name or b"")
        return head + self._tags(b"", 0) if version >= APIS[key].flexible else head

    def message(self, message: Any) -> bytes:
        """A message of kio's class, each of its fields with some value that its type has."""
        flexible = bool(message.__flexible__)
        out = b""
        tagged = []
        for spec in fields_of(message):
            if spec.tag is None:
                out += self._field(spec, flexible=flexible)
            elif self.rng.random() < 0.5:
                tagged.append((spec.tag, self._field(spec, flexible=True)))
        if not flexible:
            return out
        known = b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted(tagged))
        return out + self._tags(known, len(tagged))

    def _tags(self, known: bytes, number: int) -> bytes:
        """Tagged fields: those that are known, and now and then some that are not."""
        unknown = self.rng.choice((1, 3)) if self.rng.random() < 0.05 else 0
        extra = [uvarint(1000 + tag) + uvarint(size) + bytes(size) for tag, size in enumerate(range(unknown))]
        return uvarint(number + unknown) + known + b"".join(extra)

    def _field(self, spec: FieldSpec, *, flexible: bool) -> bytes:
        if not spec.is_array:
            return self._one(spec, flexible=flexible)
        if spec.is_nullable and self.rng.random() < 0.2:
            return b"\0" if flexible else b"\xff\xff\xff\xff"
        elements = [self._one(spec, flexible=flexible) for _ in range(self.rng.choice((0, 1, 1, 1, 2, 3)))]
        if elements and self.rng.random() < 0.2:
            elements.append(self.rng.choice(elements))
        head = uvarint(len(elements) + 1) if flexible else struct.pack(">i", len(elements))
        return head + b"".join(elements)

    def _one(self, spec: FieldSpec, *, flexible: bool) -> bytes:
        rng = self.rng
        if spec.nested is not None:
            if spec.is_nullable and not spec.is_array:
                return b"\xff" if rng.random() < 0.3 else b"\x01" + self.message(spec.nested)
            return self.message(spec.nested)
        kind = spec.kind
        if kind == "bool":
            return bytes((rng.choice((0, 1, 1, 2, 255)),))
        if kind == "uuid":
            pool = [uuid.UUID(int=0), uuid.UUID(int=rng.getrandbits(128)), *self.ids, *self.ids]
            return rng.choice(pool).bytes
        if kind == "float64":
            return struct.pack(">d", rng.choice((0.0, -1.0, float("nan"), float("inf"))))
        if kind == "uint16":
            return struct.pack(">H", rng.choice((0, 1, 65535)))
        if kind in _WHOLE:
            form, bits = _WHOLE[kind]
            return struct.pack(form, self._whole(spec.name, bits))
        may_be_null = spec.is_nullable and not spec.is_array
        data = None if may_be_null and rng.random() < 0.4 else self._bytes(spec)
        size = -1 if data is None else len(data)
        head = uvarint(size + 1) if flexible else struct.pack(">h" if kind == "string" else ">i", size)
        return head + (data or b"")

    def _whole(self, name: str, bits: int) -> int:
        rng = self.rng
        most = 1 << (bits - 1)
        if name in _SMALL:
            return rng.choice((0, 1, 5, 20, -1, -most))
        if name in ("num_partitions", "count"):
            return rng.choice((-1, 0, 1, 1, 2, 20_000, most - 1, -most))
        if name == "acks":
            return rng.choice((-1, -1, 0, 1, 1, 2, -2, most - 1))
        if rng.random() < 0.6:
            return rng.choice((0, 0, 0, 1, -1))
        return rng.choice((2, 3, -2, -3, -6, 100, most - 1, -most, most - 2, rng.randrange(-most, most)))

    def _bytes(self, spec: FieldSpec) -> bytes:
        rng = self.rng
        if spec.kind == "records":
            return self.records()
        if spec.kind == "bytes":
            return rng.choice((b"", b"\0\1\0\0\0\1\0\6fuzz-a\xff\xff\xff\xff", rng.randbytes(rng.randrange(60))))
        if rng.random() < 0.15:
            return rng.choice(STRANGE).encode()
        name = spec.name
        pool: Sequence[str] = TOPICS
        if "group" in name and "instance" not in name:
            pool = GROUPS
        elif "member_id" in name:
            pool = ("", *self.members[-5:])
        elif "instance" in name:
            pool = ("static-1", "static-2")
        elif "protocol" in name:
            pool = ("consumer", "range", "roundrobin")
        elif "key" in name and spec.is_array:
            pool = (*GROUPS, *KEYS, *TRANSACTIONAL_IDS)
        elif name == "value":
            pool = VALUES
        elif name in ("resource_name", "name", "key"):
            pool = (*TOPICS, *KEYS, *GROUPS)
        elif "transactional" in name:
            pool = ("", *TRANSACTIONAL_IDS)
        return rng.choice(pool).encode()

    def records(self) -> bytes:
        """Batches of a producer, now and then with something in them that is not right."""
        rng = self.rng
        now = rng.choice((1_790_000_000_000, -1, 0, 2**63 - 1))
        key = rng.choice((None, b"k", b"key"))
        records = [NewRecord(rng.randbytes(rng.randrange(40)), key, now) for _ in range(rng.choice((1, 1, 3)))]
        if rng.random() < 0.3:
            batch = encode_batch(
                records,
                producer_id=rng.choice((0, 1, 2**40)),
                producer_epoch=0,
                base_sequence=rng.choice((0, 1, 2, 5, 2**31 - 1)),
                transactional=rng.random() < 0.5,
            )
        else:
            batch = encode_batch(records)
        if rng.random() < 0.2:
            area = bytes(batch[BATCH_OVERHEAD:])
            changes = {rng.choice(HEADER): rng.choice((-1, 0, 1, 16, 32, 127)) for _ in range(2)}
            batch = batch_of(area, **{**read_header(batch)._asdict(), **changes})
        data = bytearray(batch) * rng.choice((1, 1, 1, 2))
        if rng.random() < 0.4:
            self._flip(data)
        return bytes(data)

    # What is wrong on purpose

    def mutated(self, frame: bytes) -> bytes:
        """The same with its size, and with something wrong with it."""
        rng = self.rng
        data = bytearray(frame)
        rng.choice((self._flip, self._flip, self._cut, self._overwrite, self._overwrite, self._insert, self._noise))(
            data
        )
        size = len(data)
        if rng.random() < 0.1:
            size = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), size + 1, max(size - 1, 0), size + 70_000))
        return struct.pack(">i", size) + bytes(data)

    def _flip(self, data: bytearray) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 8))):
            if data:
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)

    def _cut(self, data: bytearray) -> None:
        del data[self.rng.randrange(len(data)) :]

    def _overwrite(self, data: bytearray) -> None:
        """A length, or what may be one."""
        hostile = self.rng.choice(_HOSTILE)
        at = self.rng.randrange(min(8, len(data)), len(data) + 1)
        data[at : at + len(hostile)] = hostile

    def _insert(self, data: bytearray) -> None:
        at = self.rng.randrange(len(data) + 1)
        piece = self.rng.randbytes(self.rng.choice((1, 4, 100)))
        if self.rng.random() < 0.3:
            start = self.rng.randrange(len(data))
            piece = bytes(data[start : start + 50]) * self.rng.choice((1, 20))
        data[at:at] = piece

    def _noise(self, data: bytearray) -> None:
        at = self.rng.randrange(min(8, len(data)), len(data) + 1)
        data[at:] = self.rng.randbytes(self.rng.choice((0, 10, 500, 70_000)))


def versions() -> list[tuple[ApiKey, int]]:
    """All that are served."""
    return [(api.key, version) for api in APIS.values() for version in range(api.served, api.high + 1)]
