"""Appends that a broker might get, most of them right and many of them nearly so, and a log that is nothing but its
plans."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

from seglog.core.config import LogConfig
from seglog.core.types import MAX_INT32, Buffer, TimestampType
from seglog.records.batch import BatchHeader, build_batch, read_header
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.log.admit import AppendPlan, Duplicate, Origin, admit
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.producers import Producers

NOW_MS: Final = 1_800_000_000_000


class PlannedLog:
    """A model of a log after its appends: bytes, producers, epochs. Everything is replicated at once."""

    def __init__(self, config: LogConfig | None = None, leader_epoch: int = 0) -> None:
        self.config = config or LogConfig()
        self.leader_epoch = leader_epoch
        self.producers = Producers()
        self.epochs = LeaderEpochs()
        self.data = bytearray()
        self.end_offset = 0
        self.plans: list[AppendPlan] = []

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset()
        return self.end_offset if unstable is None else unstable

    def plan(
        self, data: Buffer, origin: Origin = Origin.CLIENT, *, transaction_version: int = 0, now_ms: int = NOW_MS
    ) -> AppendPlan | Duplicate:
        return admit(
            data,
            end_offset=self.end_offset,
            config=self.config,
            producers=self.producers,
            latest_epoch=self.epochs.latest,
            leader_epoch=self.leader_epoch,
            origin=origin,
            now_ms=now_ms,
            transaction_version=transaction_version,
        )

    def append(
        self, data: Buffer, origin: Origin = Origin.CLIENT, *, transaction_version: int = 0, now_ms: int = NOW_MS
    ) -> AppendPlan | Duplicate:
        plan = self.plan(data, origin, transaction_version=transaction_version, now_ms=now_ms)
        if isinstance(plan, AppendPlan):
            self.apply(plan)
        return plan

    def apply(self, plan: AppendPlan) -> None:
        self.plans.append(plan)
        self.data += plan.data
        self.end_offset = plan.last_offset + 1
        if plan.clears_epochs:
            self.epochs.clear()
        for epoch, start in plan.epoch_starts:
            self.epochs.assign(epoch, start)
        if plan.updates is not None:
            for completed in self.producers.apply(plan.updates):
                self.producers.complete(completed)
        self.producers.reflect(self.end_offset)
        self.producers.on_high_watermark(self.end_offset)


def made(count: int = 2, *, timestamp: int = NOW_MS, key: bytes | None = b"k", **options: Any) -> bytes:
    """A batch with a record each millisecond from ``timestamp`` on; ``options`` are those of `encode_batch`."""
    records = [NewRecord(b"v%d" % at, key, timestamp + at) for at in range(count)]
    return bytes(encode_batch(records, **options))


def planned(log: PlannedLog, data: Buffer, origin: Origin = Origin.CLIENT) -> AppendPlan:
    """Append what is neither refused nor a duplicate."""
    plan = log.append(data, origin)
    assert isinstance(plan, AppendPlan)
    return plan


def with_header(batch: bytes | bytearray, **changes: int) -> bytes:
    """The batch with other header fields and the CRC right again."""
    header: BatchHeader = read_header(batch)._replace(**changes)
    return bytes(build_batch(header, memoryview(batch)[61:]))


@dataclass
class Client:
    """A producer that mostly knows what it does. ``sequence`` is its next one, None before its first batch."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    in_txn: bool = False
    sent: list[bytes] = field(default_factory=list)


class Traffic:
    """Random appends: `next` gives the bytes of one and where it comes from."""

    def __init__(self, seed: int, *, codecs: tuple[int, ...] = (0,), hostile_headers: bool = False) -> None:
        self.random = random.Random(seed)
        self.codecs = codecs
        self.hostile_headers = hostile_headers
        # a sequence next to the wrap, ids that share buckets of a hash table
        self.clients = [Client(7), Client(23), Client(39, sequence=MAX_INT32 - 6), Client(1 << 40)]
        self.coordinator_epoch = 0

    def next(self) -> tuple[bytes, Origin]:
        kind = self.random.random()
        if kind < 0.2:
            return self._plain(), Origin.CLIENT
        client = self.random.choice(self.clients)
        if kind < 0.35:
            return self._marker(client), Origin.COORDINATOR
        if kind < 0.45 and client.sent:
            return self.random.choice(client.sent[-7:]), Origin.CLIENT
        if kind < 0.55:
            return self._damaged(), Origin.CLIENT
        return self._produced(client), Origin.CLIENT

    def records(self) -> list[NewRecord]:
        chance = self.random.random
        return [
            NewRecord(
                value=None if chance() < 0.1 else self.random.randbytes(self.random.randrange(40)),
                key=None if chance() < 0.05 else b"k%d" % self.random.randrange(9),
                timestamp=self._timestamp(),
                headers=(("h", None), ("", b"\xff")) if chance() < 0.1 else (),
            )
            for _ in range(self.random.randint(1, 5))
        ]

    def _timestamp(self) -> int:
        if self.random.random() < 0.97:
            return NOW_MS + self.random.randint(-5000, 5000)
        hour = 3_600_000
        return self.random.choice([-1, 0, NOW_MS + hour, NOW_MS + hour + 1, NOW_MS - hour, NOW_MS - hour - 1])

    def _plain(self) -> bytes:
        if self.random.random() < 0.03:
            return bytes(encode_batch([NewRecord(self.random.randbytes(1100), b"k", NOW_MS)]))
        return bytes(encode_batch(self.records(), codec=self.random.choice(self.codecs)))

    def _produced(self, client: Client) -> bytes:
        chance = self.random.random()
        records = self.records()
        epoch, sequence, transactional = client.epoch, client.sequence, client.in_txn or self.random.random() < 0.3
        if chance < 0.03:
            epoch -= 1
        elif chance < 0.07:
            epoch, sequence = client.epoch + 1, self.random.choice([0, 0, 0, 3])
        elif chance < 0.12:
            sequence = (sequence + self.random.choice([-3, -1, 1, 2, 50])) & MAX_INT32
        elif chance < 0.15:
            transactional = not transactional
        batch = bytes(
            encode_batch(
                records,
                codec=self.random.choice(self.codecs),
                producer_id=client.producer_id,
                producer_epoch=max(epoch, 0),
                base_sequence=sequence,
                transactional=transactional,
            )
        )
        if chance >= 0.12 or (epoch > client.epoch and not sequence):
            client.epoch, client.in_txn = max(epoch, client.epoch), transactional
            client.sequence = (sequence + len(records)) & MAX_INT32
        client.sent.append(batch)
        return batch

    def _marker(self, client: Client) -> bytes:
        epoch = client.epoch + self.random.choice([1, 1, 1, 0, -1])
        coordinator_epoch = self.coordinator_epoch + self.random.choice([0, 0, 0, 0, 1, -1])
        self.coordinator_epoch = max(self.coordinator_epoch, coordinator_epoch)
        if epoch > client.epoch:
            client.epoch, client.sequence = epoch, 0
        client.in_txn = False
        return bytes(
            end_txn_marker(
                commit=self.random.random() < 0.5,
                coordinator_epoch=max(coordinator_epoch, 0),
                producer_id=client.producer_id,
                producer_epoch=max(epoch, 0),
                timestamp=NOW_MS,
            )
        )

    def _damaged(self) -> bytes:
        batch = bytearray(encode_batch(self.records(), codec=self.random.choice(self.codecs)))
        header = read_header(batch)
        choice = self.random.randrange(8 if self.hostile_headers else 6)
        if choice == 0:
            batch[self.random.randrange(21, len(batch))] ^= 1 << self.random.randrange(8)
        elif choice == 1:
            return with_header(batch, base_offset=self.random.choice([1, 5, -1]))
        elif choice == 2:
            return with_header(batch, records_count=self.random.choice([0, -1, 6, MAX_INT32]))
        elif choice == 3:
            return with_header(batch, last_offset_delta=header.last_offset_delta + self.random.choice([-9, 1, 9]))
        elif choice == 4:
            return bytes(batch + encode_batch(self.records()))
        elif choice == 5:
            return with_header(batch, producer_id=77, producer_epoch=0, base_sequence=-1)
        elif choice == 6:
            return with_header(batch, max_timestamp=self.random.choice([-1, 5, NOW_MS + 10**8]))
        else:
            kind = TimestampType.LOG_APPEND_TIME.value << 3
            return with_header(batch, attributes=header.attributes | kind)
        return bytes(batch)
