"""Topics of a broker or cluster, through a stock client: create them, write to them, read them, commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.broker.python_clients import AdminClient, NewTopic
from tests.kit.waiting import wait_until

_SECONDS: Final = 60
_TOO_FEW_BROKERS: Final = (KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.INVALID_REPLICA_ASSIGNMENT)
_NO_LEADER_YET: Final = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


def admin_client(bootstrap: str) -> Any:
    """Keep it until its requests are answered: it cancels them when it is collected."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topics(bootstrap: str, *topics: NewTopic) -> None:
    """Raises what the broker answers. A broker that has just lost its session, on a busy machine, is waited for."""
    admin = admin_client(bootstrap)
    left = {one.topic: one for one in topics}

    def are_made() -> bool:
        for name, created in admin.create_topics(list(left.values())).items():
            try:
                created.result(_SECONDS)
            except KafkaException as error:
                if error.args[0].code() not in _TOO_FEW_BROKERS:
                    raise
            else:
                del left[name]
        return not left

    wait_until(are_made, lambda: f"brokers for {', '.join(left)}")


def write(bootstrap: str, topic: str, value: str, seconds: float = 60) -> KafkaError | None:
    """One record to partition 0 with acks=all; None, or why it was not acknowledged."""
    told: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all", "message.timeout.ms": seconds * 1000}
    )
    producer.produce(topic, value.encode(), partition=0, on_delivery=_delivered(told))
    producer.flush(seconds + 30)
    return told[0]


def write_all(bootstrap: str, topic: str, values: Sequence[str], *, batch: int) -> None:
    """Write to partition 0 in batches of that many records; every one of them must be acknowledged by the ISR.

    A batch goes with the flush alone, however long its records take."""
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all", "linger.ms": 60_000})
    for number, value in enumerate(values, 1):
        producer.produce(topic, value.encode(), partition=0, on_delivery=_delivered(told))
        if number % batch == 0:
            producer.flush(_SECONDS)
    producer.flush(_SECONDS)
    assert told == [None] * len(values)


def _delivered(told: list[KafkaError | None]) -> Callable[[KafkaError | None, object], None]:
    return lambda error, _: told.append(error)


def values(bootstrap: str, topic: str) -> list[str]:
    """Everything in partition 0."""
    with consumer(bootstrap, "none") as reader:
        end = _end(reader, TopicPartition(topic, 0))
        reader.assign([TopicPartition(topic, 0, 0)])
        found: list[str] = []
        while len(found) < end:
            for message in reader.consume(end, 5):
                error, value = message.error(), message.value()
                if error is not None:
                    raise KafkaException(error)
                found.append((value or b"").decode())
        return found


def _end(reader: Consumer, place: TopicPartition) -> int:
    """The high watermark, as soon as the partition's leader knows that it leads: librdkafka does not ask again."""
    found: list[int] = []

    def is_there() -> bool:
        try:
            found.append(reader.get_watermark_offsets(place, timeout=_SECONDS)[1])
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET:
                raise
        return bool(found)

    wait_until(is_there, f"a leader of {place.topic}")
    return found[0]


@contextmanager
def consumer(bootstrap: str, group: str) -> Iterator[Consumer]:
    """One that commits only if it is asked to."""
    opened = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, "enable.auto.commit": False})
    try:
        yield opened
    finally:
        opened.close()


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    """An offset of partition 0."""
    with consumer(bootstrap, group) as member:
        member.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def committed(bootstrap: str, group: str, topic: str) -> int:
    """The offset that the group has committed in partition 0."""
    with consumer(bootstrap, group) as member:
        (found,) = member.committed([TopicPartition(topic, 0)], timeout=_SECONDS)
        return found.offset


@contextmanager
def begin_work(bootstrap: str) -> Iterator[None]:
    """Partition 0 of ``work``, which exists, gets 20 records, of which group ``readers`` has read 5, and 4 of a
    transaction that stays open."""
    write_all(bootstrap, "work", [f'{{"number": {number}}}' for number in range(20)], batch=5)
    commit(bootstrap, "readers", "work", 5)
    settings = {"transactional.id": "open", "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    producer.init_transactions(_SECONDS)
    producer.begin_transaction()
    for _ in range(4):
        producer.produce("work", b"open", partition=0)
    producer.flush(_SECONDS)
    yield
