"""Logs to compact: random ones on a disk in memory, and what a consumer must find in them before and after."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from seglog.core.config import LogConfig
from seglog.core.types import MAX_INT64
from seglog.records import any_magic
from seglog.records.batch import BatchHeader, Entry
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, Record, encode_batch, end_txn_marker, parse_control
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from seglog.storage.log.transaction_index import AbortedTxn
from tests.storage.legacy_sets import encode_set

START_MS = 1_790_000_000_000
LARGE: Mapping[str, int] = {
    "internal_segment_bytes": 12 << 20,
    "segment_index_bytes": 1 << 20,
    "max_message_bytes": 1 << 23,
}
"""`config` of logs for `append_large`."""
KEYS = (b"", *(b"key-%d" % at for at in range(6)), b"a long key, longer than a hash of it")


def config(**overrides: object) -> LogConfig:
    """Tiny segments, no retention; ``delete_retention_ms=1`` is the key delete.retention.ms."""
    return LogConfig.from_mapping(
        {
            "cleanup.policy": "compact",
            "internal.segment.bytes": "1500",
            "segment.index.bytes": "600",
            "index.interval.bytes": "300",
            "delete.retention.ms": "10000",
            "file.delete.delay.ms": "0",
            "message.timestamp.after.max.ms": str(MAX_INT64),
        }
        | {key.replace("_", "."): value for key, value in overrides.items()}
    )


class Batch(NamedTuple):
    """A batch as it lies in a segment."""

    header: BatchHeader
    records: list[Record]
    data: bytes


def batches(log: Log) -> list[Batch]:
    """All batches of the log's files, whatever its start offset; CRCs are checked."""
    found = []
    for segment in log.segments:
        for header, position, data in segment.headers():
            entry = Entry(0, header.size, header.base_offset, header.magic)
            any_magic.check(data, entry)
            found.append(Batch(header, segment.decode(data, header, position), bytes(data)))
    return found


class Fact(NamedTuple):
    """A record of data (no marker), whether its transaction was aborted, and whether of a new format."""

    record: Record
    aborted: bool
    legacy: bool


def facts(log: Log) -> list[Fact]:
    """The data records of the log in the order of its files, decided by its markers rather than its ``.txnindex``."""
    found: list[tuple[Record, int | None, bool]] = []
    open_since: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    for header, records, _ in batches(log):
        if header.is_control:
            start = open_since.pop(header.producer_id, header.base_offset)
            if records and parse_control(records[0]).type == 0:
                aborted.append((header.producer_id, start, header.base_offset))
            continue
        if header.is_transactional:
            open_since.setdefault(header.producer_id, header.base_offset)
        producer = header.producer_id if header.is_transactional else None
        found += [(record, producer, header.magic < 2) for record in records]
    return [
        Fact(record, any(producer == txn[0] and txn[1] <= record.offset < txn[2] for txn in aborted), legacy)
        for record, producer, legacy in found
    ]


def newest(found: Iterable[Fact]) -> dict[bytes, Record]:
    """Key -> its last committed record, also if that is a tombstone."""
    return {fact.record.key: fact.record for fact in found if fact.record.key is not None and not fact.aborted}


def values(found: Iterable[Fact]) -> dict[bytes, bytes]:
    """Key -> its last committed value, where it is not deleted."""
    return {key: record.value for key, record in newest(found).items() if record.value is not None}


def index_of_aborted(log: Log) -> list[AbortedTxn]:
    return [txn for segment in log.segments for txn in segment.txn_index.entries]


class Producer:
    """An idempotent producer that may have a transaction open."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0
        self.in_txn = False


class Writer:
    """Appends random batches that a log takes: idempotent producers, transactions, every codec, old formats."""

    def __init__(
        self, log: Log, rng: random.Random, *, codecs: Iterable[int] = tuple(Codec), keyless: bool = False
    ) -> None:
        self.log = log
        self.rng = rng
        self.codecs = tuple(codecs)
        self.keyless = keyless
        self.producers = [Producer(1000 + at) for at in range(3)]
        self.now_ms = START_MS

    def records(self, count: int, *, legacy: bool = False) -> list[NewRecord]:
        rng = self.rng
        spread = rng.choice([0, 50, 100_000])
        return [
            NewRecord(
                value=None if rng.random() < 0.2 else rng.randbytes(rng.choice([0, 3, 30, 120])),
                key=None if self.keyless and rng.random() < 0.1 else rng.choice(KEYS),
                timestamp=self.now_ms - rng.randrange(spread + 1),
                headers=(("h", b"1"), ("n", None)) if rng.random() < 0.1 and not legacy else (),
            )
            for _ in range(count)
        ]

    def plain(self) -> None:
        codec = self.rng.choice(self.codecs)
        self._append(encode_batch(self.records(self.rng.choice([1, 1, 2, 5, 9])), codec=codec))

    def produced(self) -> None:
        """Of an idempotent producer, in its transaction or opening one, or outside."""
        rng = self.rng
        producer = rng.choice(self.producers)
        producer.in_txn = producer.in_txn or rng.random() < 0.5
        records = self.records(rng.choice([1, 2, 6]))
        self._append(
            encode_batch(
                records,
                codec=rng.choice(self.codecs),
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=producer.sequence,
                transactional=producer.in_txn,
            )
        )
        producer.sequence += len(records)

    def marker(self, *, commit: bool | None = None) -> None:
        """End one of the open transactions, or none: a coordinator ends empty ones as well."""
        producer = self.rng.choice([one for one in self.producers if one.in_txn] or self.producers)
        producer.in_txn = False
        if self.rng.random() < 0.2:
            producer.epoch += 1
            producer.sequence = 0
        self._append(
            end_txn_marker(
                commit=self.rng.random() < 0.5 if commit is None else commit,
                coordinator_epoch=0,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                timestamp=self.now_ms,
            ),
            Origin.COORDINATOR,
        )

    def legacy(self) -> None:
        """A message of format 0 or 1, some compressed, as an old leader replicated it."""
        magic = self.rng.randrange(2)
        records = self.records(self.rng.choice([1, 3]), legacy=True)
        end = self.log.log_end_offset
        codecs = [codec for codec in self.codecs if codec < Codec.ZSTD]
        append_time = self.now_ms if magic and self.rng.random() < 0.3 else None
        data = encode_set(records, offset=end, magic=magic, codec=self.rng.choice(codecs), append_time=append_time)
        self._append(data, Origin.REPLICATION)

    def sync(self) -> None:
        """Go on as producers that ask the log how far they are: after a truncation."""
        for producer in self.producers:
            entry = self.log.producers.entries.get(producer.producer_id)
            producer.epoch = 0 if entry is None else entry.epoch
            producer.sequence = 0 if entry is None else entry.last_sequence + 1
            producer.in_txn = entry is not None and entry.current_txn_first_offset is not None

    def end_all(self) -> None:
        while any(producer.in_txn for producer in self.producers):
            self.marker()

    def write(self, steps: int, *, legacy: bool = False) -> None:
        for _ in range(steps):
            kinds = [self.plain, self.plain, self.produced, self.produced, self.marker, self._pass_time]
            if legacy:
                kinds += [self.legacy, self.legacy]
            self.rng.choice(kinds)()

    def _pass_time(self) -> None:
        self.now_ms += self.rng.choice([1, 1000, 20_000])

    def _append(self, data: bytes | bytearray, origin: Origin = Origin.CLIENT) -> None:
        if origin is Origin.REPLICATION:
            self.log.append(data, origin=origin)
        else:
            self.log.append(data, leader_epoch=0, origin=origin)


def append_large(log: Log, rng: random.Random, keys: int, codec: Callable[[int], int]) -> None:
    """Batches around the number of keys that are asked for together, larger than all buffers; all in rolled segments.

    ``codec`` is given a batch's number of records."""
    for count in [1, 255, 256, 257, 1000, 3, 513, 1, 1, 40_000, 100, 20_000, *rng.choices([1, 2, 100, 300], k=40)]:
        records = [
            NewRecord(
                None if rng.random() < 0.1 else rng.randbytes(rng.choice([0, 10, 150])),
                b"key-%d" % rng.randrange(keys),
                START_MS + rng.randrange(1000),
            )
            for _ in range(count)
        ]
        log.append(encode_batch(records, codec=codec(count)))
        if count in (513, 40_000):
            log.roll()
    log.roll()
