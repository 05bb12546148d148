"""Settings that all stock clients of these tests share, and the conversion of the records that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, Message

from tests.cluster_run.history import Read

PATIENT: Final[Mapping[str, str | int | float | bool]] = {
    "log_level": 0,
    "socket.timeout.ms": 4000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 2000,
}


def reads_of(messages: Sequence[Message], wrong: list[str]) -> list[Read]:
    """The records that were polled. Errors that a consumer must never get are appended to ``wrong``."""
    found = []
    for message in messages:
        error = message.error()
        if error is not None:
            if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                wrong.append(f"a consumer was told {error.str()}")
            continue
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert value is not None
        found.append(Read(f"{message.topic()}-{message.partition()}", offset, value.decode()))
    return found
