"""A member of the demo's group, as its own program: ``python -m demo.member NAME BOOTSTRAP GROUP``.

It counts the flights of each carrier, and commits after every batch. It reports on stdout, one JSON array a line: its
partitions when they are assigned, its reads before it commits them, and its commits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter

from confluent_kafka import Consumer, KafkaException, TopicPartition

from demo.produce import TOPIC

_BATCH = 2000
_SETTINGS = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 1500,
    "heartbeat.interval.ms": 300,
    "partition.assignment.strategy": "range",
}


def main(name: str, bootstrap: str, group: str) -> None:
    """Read until SIGTERM, and leave the group."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))

    def say(*what: object) -> None:
        # One write, so that lines of two members that share a pipe do not mix.
        os.write(sys.stdout.fileno(), json.dumps([name, *what]).encode() + b"\n")

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        say("assigned", sorted(one.partition for one in partitions))

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **_SETTINGS})
    consumer.subscribe([TOPIC], on_assign=assigned)
    while not ended:
        carriers: dict[int, Counter[str]] = {}
        ranges: dict[int, tuple[int, int]] = {}
        for message in consumer.consume(_BATCH, 0.1):
            if (error := message.error()) is not None:
                raise KafkaException(error)
            partition, offset, headers = message.partition(), message.offset(), message.headers()
            assert partition is not None
            assert offset is not None
            assert isinstance(headers, list)
            carrier = headers[0][1]
            assert isinstance(carrier, bytes)
            ranges[partition] = (ranges.get(partition, (offset, 0))[0], offset + 1)
            carriers.setdefault(partition, Counter())[carrier.decode()] += 1
        for partition, (first, end) in ranges.items():
            say("read", partition, first, end, carriers[partition])
        if ranges:
            ends = [TopicPartition(TOPIC, partition, end) for partition, (_, end) in ranges.items()]
            try:
                consumer.commit(offsets=ends, asynchronous=False)
            except KafkaException as refused:  # the group is changing: whoever is next reads it again
                say("refused", str(refused))
            else:
                say("committed", {partition: end for partition, (_, end) in ranges.items()})
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
