"""Random requests of transactional producers and administrators, to a real Kafka and to ours: the same answers, and the
same records in ``__transaction_state``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from seglog.coordinators.transactions.log_records import decode
from seglog.coordinators.transactions.transaction import Transaction
from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.kit.waiting import SECONDS
from tests.sequences.batches import START_MS
from tests.sequences.both import CLOSED, UNKNOWN_ID, Both, Ref, Side, brief
from tests.sequences.internal_topics import records_of

UNFINISHED: Final = frozenset({14, 15, 16, 19, 51})
"""Codes on which a client tries again: loading, no coordinator yet, the last transaction is being completed."""
TIMEOUT_MS: Final = 600_000
WRONG_ID: Final = 987_654_321
_BUMPS: Final = 5
"""The first version of EndTxn that gives the producer its next epoch."""
_BY_ID: Final = 6
"""The first version of TxnOffsetCommit that names topics by their ids."""


class Producer:
    """A transactional producer, as its client has it; ``former`` are epochs that it has had."""

    def __init__(self, transactional_id: str) -> None:
        self.id = transactional_id
        self.ref = Ref(f"producer of {transactional_id}")
        self.epoch = -1
        self.former: list[int] = []
        self.sequences: dict[tuple[str, int], int] = {}
        self.ended_by = 0
        """The version of the EndTxn that ended its last transaction."""

    def now_at(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.former.append(self.epoch)
            self.sequences.clear()
        self.epoch = epoch


class Transactions:
    """Asks both brokers the same, step by step; ``topics`` are there with two partitions each."""

    def __init__(self, both: Both, rng: Random, name: str, topics: list[str]) -> None:
        self.both = both
        self.rng = rng
        self.topics = topics
        self.written: set[tuple[str, int]] = set()
        self.group = f"group-{name}"
        self.producers = [Producer(f"{name}-{number}") for number in range(3)]
        for producer in self.producers:
            self.settle(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[producer.id])
        self.settle(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[self.group])
        for side in both.sides:
            for topic in side.wire().ask(ApiKey.METADATA, topics=[{"name": name} for name in topics]).topics:
                side.learn(Ref(topic.name), topic.topic_id)

    def settle(self, key: ApiKey, version: int, **contents: Any) -> tuple[Any, Any]:
        """The last answers of both, each asked until it has no code on which clients try again."""
        self.both.tell(f"{key.name} v{version} {brief(contents)}")
        answers = tuple(_settled(side, key, version, contents) for side in self.both.sides)
        self.both.compare(*(side.plain(one) for side, one in zip(self.both.sides, answers, strict=True)))
        return answers[0], answers[1]

    def step(self) -> None:
        producer = self.rng.choice(self.producers)
        if producer.epoch < 0:
            self.init(producer)
            return
        act = self.rng.choices(
            (
                self.init,
                self.add,
                self.produce,
                self.end,
                self.add_offsets,
                self.commit_offsets,
                self.verify,
                self.describe,
            ),
            (2, 4, 6, 6, 2, 2, 2, 1),
        )[0]
        act(producer)

    def _identity(self, producer: Producer) -> tuple[int | Ref, int]:
        """Mostly its own, now and then a former one, or another's."""
        draw = self.rng.random()
        if draw < 0.08:
            return WRONG_ID, producer.epoch
        if draw < 0.2 and producer.former:
            return producer.ref, max(self.rng.choice(producer.former), 0)
        if draw < 0.24:
            return producer.ref, producer.epoch + 3
        return producer.ref, producer.epoch

    def _named(self, producer: Producer) -> dict[str, Any]:
        producer_id, epoch = self._identity(producer)
        return {"transactional_id": producer.id, "producer_id": producer_id, "producer_epoch": epoch}

    def init(self, producer: Producer) -> None:
        version = self.rng.randrange(6)
        expected: tuple[int | Ref, int] = (-1, -1)
        if version >= 3 and producer.epoch >= 0 and self.rng.random() < 0.5:
            expected = self._identity(producer)
        fields: dict[str, Any] = {}
        if version >= 3:
            fields = {"producer_id": expected[0], "producer_epoch": expected[1]}
        if producer.epoch < 0:
            # The ids are each broker's own.
            answers = [
                _settled(
                    side,
                    ApiKey.INIT_PRODUCER_ID,
                    version,
                    {"transactional_id": producer.id, "transaction_timeout": TIMEOUT_MS, **fields},
                )
                for side in self.both.sides
            ]
            self.both.compare(*((one.error_code, one.producer_epoch) for one in answers))
            for side, one in zip(self.both.sides, answers, strict=True):
                side.learn(producer.ref, one.producer_id)
        else:
            answers = list(
                self.settle(
                    ApiKey.INIT_PRODUCER_ID,
                    version,
                    transactional_id=producer.id,
                    transaction_timeout=TIMEOUT_MS,
                    **fields,
                )
            )
        if answers[0].error_code == 0:
            producer.now_at(answers[0].producer_epoch)

    def _partitions(self) -> list[dict[str, Any]]:
        numbers = self.rng.choice(([0], [1], [0, 1], [0, 1, 9]))
        return [{"name": self.rng.choice([*self.topics, self.topics[0]]), "partitions": numbers}]

    def add(self, producer: Producer) -> None:
        version = self.rng.randrange(4)
        named = {f"v3_and_below_{name}": value for name, value in self._named(producer).items()}
        self.settle(ApiKey.ADD_PARTITIONS_TO_TXN, version, **named, v3_and_below_topics=self._partitions())

    def verify(self, producer: Producer) -> None:
        version = self.rng.choice((4, 5))
        asked = {**self._named(producer), "verify_only": self.rng.random() < 0.7, "topics": self._partitions()}
        self.settle(ApiKey.ADD_PARTITIONS_TO_TXN, version, transactions=[asked])

    def produce(self, producer: Producer) -> None:
        topic, number = self.rng.choice(self.topics), self.rng.randrange(2)
        version = self.rng.choice((10, 11, 12))
        producer_id, epoch = self._identity(producer)
        expected = producer.sequences.get((topic, number), 0)
        skip = self.rng.choice((0, 0, 0, 0, 0, 0, 1, 2))
        # An empty log refuses any but sequence 0, unlike Kafka's.
        sequence = expected + (skip if (topic, number) in self.written else 0)

        def records(side: Side) -> bytes:
            found = side.given[producer_id] if isinstance(producer_id, Ref) else producer_id
            return bytes(
                encode_batch(
                    [NewRecord(b"value", timestamp=START_MS)],
                    producer_id=found,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    transactional=True,
                )
            )

        self.both.tell(f"PRODUCE v{version} {producer.id} {producer_id} epoch {epoch} {topic}-{number} {sequence}")
        answers = []
        for side in self.both.sides:
            partition = {"index": number, "records": records(side)}
            contents = {
                "transactional_id": producer.id,
                "acks": -1,
                "timeout": 30_000,
                "topic_data": [{"name": topic, "partition_data": [partition]}],
            }
            answers.append(_settled(side, ApiKey.PRODUCE, version, contents))
        codes = [one.responses[0].partition_responses[0].error_code for one in answers]
        self.both.compare(*codes)
        if codes[0] == 0:
            self.written.add((topic, number))
        if codes[0] == 0 and (producer_id, epoch) == (producer.ref, producer.epoch):
            producer.sequences[topic, number] = max(sequence, expected) + 1

    def end(self, producer: Producer) -> None:
        version = self.rng.randrange(6)
        named, committed = self._named(producer), self.rng.random() < 0.6
        if named["producer_epoch"] == producer.epoch - 1 and producer.ended_by < _BUMPS:
            version = min(version, _BUMPS - 1)  # Kafka confirms such an end to a producer that was fenced
        real, _ = self.settle(ApiKey.END_TXN, version, **named, committed=committed)
        self.settle_states([producer.id])  # until the marker is there, a former epoch's batch may be a duplicate
        is_own = named["producer_id"] == producer.ref
        if real.error_code == 0 and is_own:
            producer.ended_by = version
            if version >= _BUMPS:
                producer.now_at(real.producer_epoch)

    def add_offsets(self, producer: Producer) -> None:
        self.settle(ApiKey.ADD_OFFSETS_TO_TXN, self.rng.randrange(5), **self._named(producer), group_id=self.group)

    def commit_offsets(self, producer: Producer) -> None:
        version = self.rng.randrange(7)
        partition: dict[str, Any] = {
            "partition_index": self.rng.randrange(2),
            "committed_offset": self.rng.randrange(100),
            "committed_metadata": "",
        }
        if version >= 2:
            partition["committed_leader_epoch"] = -1
        member: dict[str, Any] = {}
        if version >= 3:
            generation = self.rng.choice((-1, -1, -1, 3))
            name = "generation_id" if version < _BY_ID else "generation_id_or_member_epoch"
            member = {name: generation, "member_id": "", "group_instance_id": None}
        topic: dict[str, Any] = {"name": self.topics[0]}
        if version >= _BY_ID:
            topic = {"topic_id": self.rng.choice([Ref(self.topics[0])] * 4 + [UNKNOWN_ID, None])}
        self.settle(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            **self._named(producer),
            **member,
            group_id=self.group,
            topics=[{**topic, "partitions": [partition]}],
        )

    def describe(self, producer: Producer) -> None:
        answers = self.settle_states([producer.id, "nobody"])
        self.both.compare(*answers)

    def settle_states(self, ids: list[str]) -> list[list[tuple[Any, ...]]]:
        found = []
        for side in self.both.sides:
            deadline = time.monotonic() + SECONDS
            while True:
                answer = side.wire().ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=ids)
                states = [
                    (
                        one.transactional_id,
                        one.error_code,
                        one.transaction_state,
                        one.producer_epoch,
                        one.transaction_timeout,
                        sorted((topic.topic, tuple(sorted(topic.partitions))) for topic in one.topics),
                    )
                    for one in answer.transaction_states
                ]
                if not any("Prepare" in state[2] for state in states) or time.monotonic() > deadline:
                    break
            found.append(sorted(states))
        return found

    def check_records(self) -> None:
        """Compare the records of each transactional id, in order, without times and the brokers' own ids."""
        self.settle_states([producer.id for producer in self.producers])
        self.both.compare(*(self._written(side) for side in self.both.sides))

    def _written(self, side: Side) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {producer.id: [] for producer in self.producers}
        for transactional_id, transaction in _records(side):
            if transactional_id in found:
                found[transactional_id].append(None if transaction is None else _plain(side, transaction))
        return found


def _plain(side: Side, transaction: Transaction) -> tuple[Any, ...]:
    ids = (transaction.producer_id, transaction.previous_producer_id, transaction.next_producer_id)
    return (
        *(side.plain_id(one) for one in ids),
        transaction.epoch,
        transaction.timeout_ms,
        transaction.state.label,
        sorted(transaction.partitions),
        transaction.start_ms >= 0,
        transaction.version,
    )


def _records(side: Side) -> Iterator[tuple[str, Transaction | None]]:
    for record in records_of(side, "__transaction_state"):
        decoded = None if record.key is None else decode(record.key, record.value)
        if decoded is not None:
            yield decoded


def _settled(side: Side, key: ApiKey, version: int, contents: dict[str, Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            answer = side.wire().ask(key, version, **side.fill(contents))
        except ConnectionError:
            side.drop()
            return CLOSED
        if UNFINISHED.isdisjoint(_codes(side.plain(answer))) or time.monotonic() > deadline:
            return answer
        time.sleep(0.005)  # neither broker says when it is done


def _codes(answer: Any) -> Iterator[int]:
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name.endswith("error_code"):
                yield value
            else:
                yield from _codes(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from _codes(value)
