"""Batches to produce, and what readers of a topic see."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from seglog.client.client_config import ClientConfig
from seglog.client.produce.batch_producer import ProducerIdentity
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch


def config(bootstrap: str, **properties: str) -> ClientConfig:
    named = {name.replace("_", "."): text for name, text in properties.items()}
    return ClientConfig.from_mapping({"bootstrap.servers": bootstrap, **named}, use="write")


def batches(identity: ProducerIdentity, count: int, *, records: int = 4, size: int = 8) -> Iterator[bytes]:
    """Batches whose records have the values 0, 1, 2 …, filled up to ``size`` bytes."""
    producer_id, epoch = identity.producer
    for number in range(0, count * records, records):
        yield bytes(
            encode_batch(
                [NewRecord(b"%0*d" % (size, one)) for one in range(number, number + records)],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=number if identity.is_idempotent else -1,
                transactional=identity.transactional_id is not None,
            )
        )


def numbers(bootstrap: str, partition: TopicPartition, *, isolation: str = "read_committed") -> list[int]:
    """The values of a partition as a stock client reads them, up to the last stable offset."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": isolation, "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    try:
        consumer.assign([ClientPartition(*partition, 0)])
        found: list[int] = []
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                return found
            found.append(int(message.value() or b""))
    finally:
        consumer.close()
