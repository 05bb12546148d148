"""Batches that a client might send to a partition: right ones, and ones that are wrong in each way that a broker knows.

Timestamps are fixed and in the past, so that the same batch gives the same bytes on both brokers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from seglog.core.types import MAX_INT32
from seglog.records.batch import BATCH_OVERHEAD, BatchHeader, build_batch, read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from tests.storage.legacy_sets import encode_set

START_MS: Final = 1_600_000_000_000
FUTURE_MS: Final = 4_000_000_000_000
"""More than ``message.timestamp.after.max.ms`` from now on, for the next forty years."""

_FIRST: Final = (0, 0, 5, MAX_INT32 - 3)
"""Sequences to begin with: any, for a broker may have deleted what came before."""


@dataclass
class Producer:
    """An idempotent producer with its own count for each partition, and what it has sent there."""

    producer_id: int
    epoch: int = 0
    sequences: dict[object, int] = field(default_factory=dict)
    sent: dict[object, list[bytes]] = field(default_factory=dict)


def changed(batch: bytes, **fields: int) -> bytes:
    """The batch with other header fields, and the CRC right again."""
    header: BatchHeader = read_header(batch)._replace(**fields)
    return bytes(build_batch(header, memoryview(batch)[BATCH_OVERHEAD:]))


class Batches:
    """Draws batches for partitions (any hashable); ``producers`` have ids that no broker gave out."""

    def __init__(self, rng: random.Random, producer_ids: range) -> None:
        self.rng = rng
        self.now = START_MS
        self.producers = [Producer(producer_id) for producer_id in producer_ids]

    def records(self, *, keyed: bool | None = None) -> list[NewRecord]:
        """One to five, seldom large; ``keyed`` None: some with a key."""
        rng = self.rng
        records = []
        for _ in range(rng.randint(1, 5)):
            self.now += rng.choice([0, 1, 7, 1000])
            size = rng.randrange(60) if rng.random() < 0.97 else rng.randrange(3000, 9000)
            has_key = rng.random() < 0.9 if keyed is None else keyed
            records.append(
                NewRecord(
                    value=None if rng.random() < 0.1 else rng.randbytes(size),
                    key=b"k%d" % rng.randrange(9) if has_key else None,
                    timestamp=self.now - rng.choice([0, 0, 0, 5]),
                    headers=(("h", None), ("", b"\xff")) if rng.random() < 0.1 else (),
                )
            )
        return records

    def plain(self, *, keyed: bool | None = None, codec: int | None = None) -> bytes:
        codec = self.rng.choice([0, 0, 0, *Codec]) if codec is None else codec
        return bytes(encode_batch(self.records(keyed=keyed), codec=codec))

    def produced(self, place: object, *, right: bool = False) -> bytes:
        """The next one of a producer, or unless it is to be ``right`` one that it should not send now."""
        rng = self.rng
        producer = rng.choice(self.producers)
        sent = producer.sent.setdefault(place, [])
        chance = 1.0 if right else rng.random()
        if sent and chance < 0.25:
            return rng.choice(sent[-7:])
        epoch, sequence = producer.epoch, producer.sequences.get(place, 0 if right else rng.choice(_FIRST))
        if chance < 0.35:
            epoch += rng.choice([-1, 1, 2])
            sequence = rng.choice([0, 0, sequence, 4])
        elif chance < 0.5:
            sequence = (sequence + rng.choice([-3, -1, 1, 2, 50])) & MAX_INT32
        batch = bytes(
            encode_batch(
                self.records(),
                producer_id=producer.producer_id,
                producer_epoch=max(epoch, 0),
                base_sequence=sequence,
            )
        )
        if chance >= 0.5 or (epoch > producer.epoch and sequence == 0):
            if epoch != producer.epoch:
                producer.sequences.clear()
            producer.epoch = epoch
            header = read_header(batch)
            producer.sequences[place] = (header.last_sequence + 1) & MAX_INT32
            sent.append(batch)
        return batch

    def damaged(self) -> tuple[str, bytes]:
        """One that is wrong, with what is wrong with it."""
        kind = self.rng.choice(list(DAMAGES))
        return kind, DAMAGES[kind](self)


def _cut(batches: Batches) -> bytes:
    batch = batches.plain()
    return batch[: batches.rng.randrange(1, len(batch))]


def _old(magic: int, codec: int = 0) -> Callable[[Batches], bytes]:
    def made(batches: Batches) -> bytes:
        return encode_set(batches.records(), offset=0, magic=magic, codec=codec)

    return made


def _flipped(batches: Batches) -> bytes:
    batch = bytearray(batches.plain())
    batch[batches.rng.randrange(BATCH_OVERHEAD, len(batch))] ^= 1
    return bytes(batch)


def _late(batches: Batches) -> bytes:
    """Some records, not always the first, are too new."""
    rng = batches.rng
    records = batches.records()
    at = rng.randrange(len(records))
    late = [record._replace(timestamp=FUTURE_MS) if n >= at else record for n, record in enumerate(records)]
    return bytes(encode_batch(late))


def _marker(_: Batches) -> bytes:
    return bytes(end_txn_marker(commit=True, coordinator_epoch=0, producer_id=5, producer_epoch=0, timestamp=START_MS))


def _header(**fields: int) -> Callable[[Batches], bytes]:
    return lambda batches: changed(batches.plain(codec=0), **fields)


def _with_producer(**fields: int) -> Callable[[Batches], bytes]:
    def made(_: Batches) -> bytes:
        records = [NewRecord(b"v", b"k", START_MS)]
        batch = encode_batch(records, producer_id=1 << 50, producer_epoch=1, base_sequence=1)
        return changed(bytes(batch), **fields)

    return made


DAMAGES: Final[Mapping[str, Callable[[Batches], bytes]]] = {
    "empty": lambda _: b"",
    "cut": _cut,
    "crc": _flipped,
    "garbage": lambda batches: batches.rng.randbytes(80),
    "two batches": lambda batches: batches.plain() + batches.plain(),
    "magic 0": _old(0),
    "magic 1": _old(1),
    "magic 1, gzip": _old(1, codec=1),
    "old and new": lambda batches: batches.plain() + _old(1)(batches),
    "magic 3": lambda batches: _patched(batches.plain(), 16, 3),
    "base offset": _header(base_offset=5),
    "count": _header(records_count=77),
    "no records": _header(records_count=0),
    "negative count": _header(records_count=-1),
    "delta": _header(last_offset_delta=99),
    "negative delta": _header(last_offset_delta=-1),
    "codec 5": _header(attributes=5),
    "codec 7": _header(attributes=7),
    "log append time": _header(attributes=8),
    "control": _header(attributes=0x20),
    "marker": _marker,
    "too late": _late,
    "no sequence": _with_producer(base_sequence=-1),
    "negative sequence": _with_producer(base_sequence=-7),
    "transactional": _with_producer(attributes=0x10, base_sequence=0),
    "transactional, later": _with_producer(attributes=0x10, base_sequence=3),
    "epoch": _header(leader_epoch=9),
}


def _patched(batch: bytes, position: int, value: int) -> bytes:
    return batch[:position] + bytes((value,)) + batch[position + 1 :]


def all_damages(batches: Batches) -> Iterator[tuple[str, bytes]]:
    for kind, make in DAMAGES.items():
        yield kind, make(batches)
