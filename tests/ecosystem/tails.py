"""Write records to a topic, and read what a product has committed to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

__all__ = ["Tail", "TailRecord", "fill"]

_SECONDS: Final = 120


class TailRecord(NamedTuple):
    key: str | None
    value: str


def fill(bootstrap: str, topic: str, records: Iterable[tuple[str | None, str]]) -> None:
    """Write them with an idempotent producer; every one must be acknowledged."""
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True, "linger.ms": 20})

    def told(error: object, _: object) -> None:
        if error is not None:
            refused.append(error)

    for key, value in records:
        producer.produce(topic, value, key, on_delivery=told)
        producer.poll(0)
    left = producer.flush(_SECONDS)
    assert not left, f"{left} records of {topic} were not acknowledged within {_SECONDS} s"
    assert not refused, refused[:3]


class Tail:
    """``with Tail(bootstrap, topic) as tail``: all committed records of a topic so far, in ``records``."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.records: list[TailRecord] = []
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"tail-of-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Self:
        partitions = self._consumer.list_topics(self._topic, timeout=60).topics[self._topic].partitions
        self._consumer.assign([TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in partitions])
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read_until(self, enough: Callable[[list[TailRecord]], bool], seconds: float = _SECONDS) -> list[TailRecord]:
        """Read on until the records are enough. After ``seconds`` without it: AssertionError with their number."""
        deadline = time.monotonic() + seconds
        while not enough(self.records):
            self._poll(0.5)
            assert time.monotonic() < deadline, (
                f"{self._topic}: {len(self.records)} records after {seconds:.0f} s, the last {self.records[-3:]}"
            )
        return self.records

    def read_on(self, seconds: float) -> list[TailRecord]:
        """Read until nothing has come for ``seconds``: a product must not write more than it has to."""
        while self._poll(seconds):
            pass
        return self.records

    def _poll(self, seconds: float) -> int:
        messages = self._consumer.consume(10_000, seconds)
        for message in messages:
            error, value, key = message.error(), message.value(), message.key()
            if error is not None and not error.retriable():
                raise KafkaException(error)
            if error is None:
                self.records.append(TailRecord(None if key is None else _text(key), _text(value or b"")))
        return len(messages)


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode()
