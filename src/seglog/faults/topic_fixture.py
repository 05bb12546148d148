"""Topics that a broker for tests has from the start, with their records."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, Final, NamedTuple

from seglog.core.types import NO_TIMESTAMP
from seglog.faults.fault import FaultError
from seglog.records.partitioner import partition_for_key
from seglog.records.record import NewRecord

_BATCH_RECORDS: Final = 500
_BATCH_BYTES: Final = 256 << 10
"""Far below ``message.max.bytes``."""


class TopicRecord(NamedTuple):
    """A record of a fixture. Text is UTF-8. ``timestamp``: milliseconds since 1970; None for the broker's time. Without
    a ``partition``, the key chooses it as Kafka's producers do; records without a key take turns."""

    value: bytes | str | None
    key: bytes | str | None = None
    headers: Sequence[tuple[str, bytes | str | None]] = ()
    timestamp: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFixture:
    """A topic with its records. ``config`` has Kafka's keys for topics. In a cluster, a partition has ``replication``
    replicas, and records can be given only with one broker."""

    partitions: int = 1
    replication: int = 1
    records: Sequence[TopicRecord | bytes | str] = ()
    config: Mapping[str, object] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "partitions": self.partitions,
            "replication": self.replication,
            "records": [_record_to_json(_record(one)) for one in self.records],
            "config": config_text(self.config),
        }

    def batches(self) -> Iterator[tuple[int, list[NewRecord]]]:
        """The records in batches, each with its partition. `FaultError` for a partition that the topic has not."""
        turns = count()
        by_partition: dict[int, list[NewRecord]] = {}
        sizes: dict[int, int] = {}
        for one in map(_record, self.records):
            key, value = _data(one.key), _data(one.value)
            number = one.partition
            if number is None:
                number = next(turns) % self.partitions if key is None else partition_for_key(key, self.partitions)
            if not 0 <= number < self.partitions:
                raise FaultError(f"a record is for partition {number}; the topic has {self.partitions}")
            headers = [(name, _data(content)) for name, content in one.headers]
            timestamp = NO_TIMESTAMP if one.timestamp is None else one.timestamp
            batch = by_partition.setdefault(number, [])
            batch.append(NewRecord(value, key, timestamp, headers))
            sizes[number] = sizes.get(number, 0) + len(key or b"") + len(value or b"")
            if len(batch) == _BATCH_RECORDS or sizes[number] >= _BATCH_BYTES:
                yield number, by_partition.pop(number)
                sizes[number] = 0
        yield from by_partition.items()


TopicSpec = int | TopicFixture | Sequence[TopicRecord | bytes | str]
"""A number of partitions, records, or both."""


def topic_fixtures(topics: Mapping[str, TopicSpec] | Iterable[str]) -> dict[str, TopicFixture]:
    """The topics that a test asks for, in one form.

    >>> topic_fixtures({"a": 3, "b": ["tea"]})["b"].records
    ('tea',)
    """
    if not isinstance(topics, Mapping):
        return {name: TopicFixture() for name in topics}
    return {name: _fixture(spec) for name, spec in topics.items()}


def _fixture(spec: TopicSpec) -> TopicFixture:
    if isinstance(spec, TopicFixture):
        return spec
    if isinstance(spec, int):
        return TopicFixture(partitions=spec)
    numbers = [one.partition for one in spec if isinstance(one, TopicRecord) and one.partition is not None]
    return TopicFixture(partitions=max(numbers, default=0) + 1, records=tuple(spec))


TOPIC_FIELDS: Final = tuple(one.name for one in fields(TopicFixture))


def fixture_from_json(document: Any) -> TopicFixture:
    """`FaultError` if the document is none."""
    try:
        _check_fields(document, TOPIC_FIELDS)
        records = tuple(_record_from_json(one) for one in document.get("records", ()))
        partitions, replication = document.get("partitions", 1), document.get("replication", 1)
        config = {str(key): str(value) for key, value in document.get("config", {}).items()}
        for number in (partitions, replication):
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"{number!r} is not a number")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FaultError(f"this is not a topic: {error!r}") from error
    return TopicFixture(partitions=partitions, replication=replication, records=records, config=config)


def config_text(config: Mapping[str, object] | None) -> dict[str, str]:
    """The values as in a properties file."""
    return {key: str(one).lower() if isinstance(one, bool) else str(one) for key, one in (config or {}).items()}


def _record(one: TopicRecord | bytes | str) -> TopicRecord:
    return one if isinstance(one, TopicRecord) else TopicRecord(one)


def _record_to_json(record: TopicRecord) -> dict[str, Any]:
    return {
        "value": _coded(record.value),
        "key": _coded(record.key),
        "headers": [[name, _coded(content)] for name, content in record.headers],
        "timestamp": record.timestamp,
        "partition": record.partition,
    }


def _check_fields(document: Mapping[str, Any], fields: Collection[str]) -> None:
    for name in document.keys() - fields:
        raise ValueError(f"there is no field {name!r}; there are {', '.join(fields)}")


def _record_from_json(document: Mapping[str, Any]) -> TopicRecord:
    _check_fields(document, TopicRecord._fields)
    return TopicRecord(
        _decoded(document.get("value")),
        _decoded(document.get("key")),
        [(str(name), _decoded(content)) for name, content in document.get("headers", ())],
        None if document.get("timestamp") is None else int(document["timestamp"]),
        None if document.get("partition") is None else int(document["partition"]),
    )


def _data(found: bytes | str | None) -> bytes | None:
    return found.encode() if isinstance(found, str) else found


def _coded(found: bytes | str | None) -> Any:
    """Text as text, bytes as an object with their base64."""
    return {"base64": base64.b64encode(found).decode()} if isinstance(found, bytes) else found


def _decoded(found: Any) -> bytes | str | None:
    if isinstance(found, Mapping):
        return base64.b64decode(found["base64"], validate=True)
    if found is not None and not isinstance(found, str):
        raise TypeError(f"{found!r} is neither text nor base64")
    return found
