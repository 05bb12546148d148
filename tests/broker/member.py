"""A member of a group, as a program: ``python -m tests.broker.member CLIENT BOOTSTRAP GROUP TOPIC [INSTANCE]``.

It prints what it is assigned, what it reads, and what it has committed, a JSON array a line, until it is killed, or
leaves when a line comes in.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.clients.driving import Watch, say

# So long is one that was killed waited for; and so long may a machine with much else to do keep one that lives silent.
SESSION_MS = 5000
# A static one is to be back before its session is over, however long its process takes to start.
STATIC_SESSION_MS = 30_000
_HEARTBEAT_MS = 500


def confluent(bootstrap: str, group: str, topic: str, instance: str | None, done: Callable[[], bool]) -> None:
    from confluent_kafka import Consumer

    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": SESSION_MS if instance is None else STATIC_SESSION_MS,
        "heartbeat.interval.ms": _HEARTBEAT_MS,
        "partition.assignment.strategy": "cooperative-sticky" if group.startswith("cooperative") else "range",
    }
    if instance is not None:
        config["group.instance.id"] = instance
    consumer = Consumer(config)
    consumer.subscribe([topic])
    watch = Watch()
    while not done():
        message = consumer.poll(0.05)
        watch.look(consumer.assignment())
        if message is not None and message.error() is None:
            say("read", message.partition(), message.offset())
            consumer.commit(message=message, asynchronous=False)
            say("committed", message.partition(), message.offset())
    consumer.close()


def kafka_python(bootstrap: str, group: str, topic: str, instance: str | None, done: Callable[[], bool]) -> None:
    from tests.broker.clients import kafka

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS if instance is None else STATIC_SESSION_MS,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        max_poll_records=1,
    )
    # It is to know its topic before it joins: as a leader it would assign nothing of it, with Kafka as with us.
    consumer.partitions_for_topic(topic)
    consumer.subscribe([topic])
    watch = Watch()
    while not done():
        found = consumer.poll(timeout_ms=50)
        watch.look(consumer.assignment())
        for records in found.values():
            for record in records:
                say("read", record.partition, record.offset)
                consumer.commit()
                say("committed", record.partition, record.offset)
    consumer.close()


def aiokafka(bootstrap: str, group: str, topic: str, _instance: str | None, done: Callable[[], bool]) -> None:
    asyncio.run(_aiokafka(bootstrap, group, topic, done))


async def _aiokafka(bootstrap: str, group: str, topic: str, done: Callable[[], bool]) -> None:
    from tests.broker.clients import aiokafka as module

    assignors = importlib.import_module("aiokafka.coordinator.assignors.range")

    consumer = module.AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=_HEARTBEAT_MS,
        max_poll_records=1,
        partition_assignment_strategy=(assignors.RangePartitionAssignor,),
    )
    await consumer.start()
    watch = Watch()
    while not done():
        found = await consumer.getmany(timeout_ms=50)
        watch.look(consumer.assignment())
        for records in found.values():
            for record in records:
                say("read", record.partition, record.offset)
                await consumer.commit()
                say("committed", record.partition, record.offset)
    await consumer.stop()


CLIENTS = {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}


def main() -> None:
    client, bootstrap, group, topic, *instance = sys.argv[1:]
    over = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    CLIENTS[client](bootstrap, group, topic, instance[0] if instance else None, over.is_set)
    say("left")


if __name__ == "__main__":
    main()
