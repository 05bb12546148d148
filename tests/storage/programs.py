"""Random things that happen to one partition, as values: played against our log, and against others beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch, end_txn_marker

START_MS = 1_790_000_000_000


class Append(NamedTuple):
    """One batch of a client, or a marker of the transaction coordinator."""

    data: bytes
    is_marker: bool = False


class Epoch(NamedTuple):
    epoch: int


class Clock(NamedTuple):
    now_ms: int


class Roll(NamedTuple):
    pass


class Truncate(NamedTuple):
    """Remove this many of the last batches."""

    back: int


class DeleteRecords(NamedTuple):
    """Up to this share of the log."""

    share: float


class Retain(NamedTuple):
    pass


Step = Append | Epoch | Clock | Roll | Truncate | DeleteRecords | Retain


class _Producer:
    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0
        self.in_txn = False


def program(seed: int, steps: int = 120, *, truncations: bool = False) -> Iterator[Step]:
    """A sequence that Kafka accepts: idempotent producers, transactions, all codecs, clocks that advance and go
    back."""
    rng = random.Random(seed)
    producers = [_Producer(rng.randrange(1, 2**40)) for _ in range(3)]
    now_ms = START_MS
    epoch = 0
    yield Epoch(0)
    for _ in range(steps):
        kind = rng.random()
        if kind < 0.70:
            yield Append(_client_batch(rng, producers, now_ms, plain=truncations))
        elif kind < 0.80:
            open_txns = [producer for producer in producers if producer.in_txn]
            if open_txns:
                yield Append(_marker(rng, rng.choice(open_txns), now_ms), is_marker=True)
        elif kind < 0.84:
            epoch += rng.randrange(1, 3)
            yield Epoch(epoch)
        elif kind < 0.88:
            now_ms += rng.choice([1, 1000, 60_000, 3_600_000])
            yield Clock(now_ms)
        elif kind < 0.91:
            yield Roll()
        elif kind < 0.94:
            yield DeleteRecords(rng.random() * 0.5)
        elif kind < 0.97:
            yield Retain()
        elif truncations:
            yield Truncate(rng.randrange(15))


def _client_batch(rng: random.Random, producers: list[_Producer], now_ms: int, *, plain: bool) -> bytes:
    count = rng.choice([1, 1, 2, 5, 40])
    spread = rng.choice([0, 10, 5000])
    records = [
        NewRecord(
            value=None if rng.random() < 0.1 else rng.randbytes(rng.choice([0, 1, 10, 100, 300])),
            key=None if rng.random() < 0.3 else b"key-%d" % rng.randrange(20),
            timestamp=now_ms - rng.randrange(spread + 1),
            headers=(("h", b"1"), ("n", None)) if rng.random() < 0.2 else (),
        )
        for _ in range(count)
    ]
    codec = rng.choice([Codec.NONE, Codec.NONE, *Codec])
    if plain or rng.random() < 0.4:
        return bytes(encode_batch(records, codec=codec))
    producer = rng.choice(producers)
    if rng.random() < 0.4:
        producer.in_txn = True
    batch = encode_batch(
        records,
        codec=codec,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
        transactional=producer.in_txn,
    )
    producer.sequence += count
    return bytes(batch)


def _marker(rng: random.Random, producer: _Producer, now_ms: int) -> bytes:
    producer.in_txn = False
    return bytes(
        end_txn_marker(
            commit=rng.random() < 0.5,
            coordinator_epoch=0,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            timestamp=now_ms,
        )
    )
