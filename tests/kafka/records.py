"""Records as values: what a test gives to the Java producer and what the Java consumer gave back."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ConsumedRecord", "Headers", "Recipe", "Record", "parse_consumed"]

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record to send; `timestamp` in ms, None for the producer's clock."""

    key: bytes | None = None
    value: bytes | None = None
    timestamp: int | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedRecord:
    """One record as Kafka's Java consumer saw it.

    `timestamp_type` is Kafka's own word: `CreateTime`, `LogAppendTime` or `NoTimestampType` (message v0, whose
    timestamp is -1). `leader_epoch` is None for message formats 0 and 1.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int | None

    @property
    def directory(self) -> str:
        """The partition's directory name, `topic-partition`."""
        return f"{self.topic}-{self.partition}"

    @classmethod
    def from_json(cls, line: str) -> ConsumedRecord:
        """One line of `Consume.java`."""
        fields = json.loads(line)
        return cls(
            topic=fields["topic"],
            partition=fields["partition"],
            offset=fields["offset"],
            timestamp=fields["timestamp"],
            timestamp_type=fields["timestampType"],
            key=_bytes(fields["key"]),
            value=_bytes(fields["value"]),
            headers=tuple((name, _bytes(value)) for name, value in fields["headers"]),
            leader_epoch=fields["leaderEpoch"],
        )


def parse_consumed(text: str) -> list[ConsumedRecord]:
    """All lines of `Consume.java`, in their order; not `splitlines`, which also cuts at U+2028 inside a string."""
    return [ConsumedRecord.from_json(line) for line in text.split("\n") if line]


@dataclass(slots=True)
class Recipe:
    """The steps that `Produce.java` runs, in order; every `batch` becomes exactly one batch in the log.

    A producer with `transactional.id` does its initTransactions at its first step. A batch must stay below 1 MiB, and
    below the topic's segment size.
    """

    _producers: dict[str, dict[str, str]] = field(default_factory=dict)
    _steps: list[dict[str, object]] = field(default_factory=list)

    def producer(self, name: str, config: dict[str, str]) -> None:
        """Name a producer; `config` is the Java producer's own keys. It is opened at its first step."""
        self._producers[name] = config

    def batch(self, producer: str, topic: str, records: Sequence[Record], *, partition: int = 0) -> None:
        """Send the records to the partition and flush."""
        body = [_json(record) for record in records]
        self._steps.append(
            {"producer": producer, "op": "batch", "topic": topic, "partition": partition, "records": body}
        )

    def begin(self, producer: str) -> None:
        self._steps.append({"producer": producer, "op": "begin"})

    def commit(self, producer: str) -> None:
        self._steps.append({"producer": producer, "op": "commit"})

    def abort(self, producer: str) -> None:
        self._steps.append({"producer": producer, "op": "abort"})

    def close(self, producer: str) -> None:
        """Close it; if it is named again it is reopened, with a new producer epoch or id."""
        self._steps.append({"producer": producer, "op": "close"})

    def halt(self, producer: str) -> None:
        """End the JVM here: an open transaction stays open."""
        self._steps.append({"producer": producer, "op": "halt"})

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"producers": self._producers, "steps": self._steps}))
        return path


def _json(record: Record) -> dict[str, object]:
    return {
        "key": _base64(record.key),
        "value": _base64(record.value),
        "timestamp": record.timestamp,
        "headers": [[name, _base64(value)] for name, value in record.headers],
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
