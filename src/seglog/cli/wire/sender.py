"""A producer for commands: its settings, its partitioner, and the first error of a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import randrange
from typing import Any, Final

from seglog.cli.options import OptionError, check_choice
from seglog.cli.wire.clients import Cluster
from seglog.cli.wire.input_lines import OutgoingRecord
from seglog.core.clock import SystemClock
from seglog.core.errors import RequestFailedError
from seglog.core.types import Buffer
from seglog.records.partitioner import Partitioner, RoundRobinPartitioner, StickyPartitioner

ACKS: Final = ("all", "1", "0")
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}
_WAIT: Final = 0.2
_BY_KEY: Final = -1
"""The library's partitioner chooses the partition."""
_BATCH: Final = 1000
"""Records that are passed to the library in one call, which costs a fraction of a call for each."""
_QUEUE_RECORDS: Final = 90_000
_QUEUE_BYTES: Final = 512 << 20
"""Below the library's limits of 100,000 records and 1 GiB: a full queue takes some records of a batch, which would
overtake the others."""


class _KeylessPartitioner:
    """Sticky for all records: `StickyPartitioner` without keys."""

    def __init__(self, partitions: int, batch_size: int) -> None:
        self._sticky = StickyPartitioner(partitions, randrange, batch_size=batch_size)

    def partition(self, _key: Buffer | None, size: int, /) -> int:
        return self._sticky.partition(None, size)


class _RandomPartitioner:
    """Sends each record to a random partition."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def partition(self, _key: Buffer | None, _size: int, /) -> int:
        return randrange(self._partitions)


PARTITIONERS: Final[Mapping[str, tuple[str, Callable[[int, int], Partitioner] | None]]] = {
    "murmur2": ("murmur2_random", None),
    "crc32": ("consistent_random", None),
    "fnv1a": ("fnv1a_random", None),
    "sticky": ("random", _KeylessPartitioner),
    "round-robin": ("random", lambda partitions, _: RoundRobinPartitioner(partitions)),
    "random": ("random", lambda partitions, _: _RandomPartitioner(partitions)),
}
"""The partitioner of librdkafka by name, and for those that it lacks ours, by partitions and batch size. ``murmur2`` is
Java's: the hash of a key, and sticky without one."""


def producer_settings(
    acks: str,
    codec: str,
    idempotent: bool | None,
    retries: int | None,
    batch_size: int,
    linger_ms: float,
    *,
    for_ever: bool = False,
) -> dict[str, object]:
    """Settings of librdkafka. ``retries`` None: no limit; ``for_ever``: a record does not time out.

    Raises `OptionError` for unknown values and for options that exclude each other.
    """
    if acks not in _ACKS:
        check_choice("--acks", acks, ACKS)
    check_choice("--codec", codec, CODECS)
    if idempotent and _ACKS[acks] != -1:
        raise OptionError(f"--idempotent needs --acks all, not {acks}")
    if idempotent and retries == 0:
        raise OptionError("--idempotent needs --retries")
    return {
        "acks": _ACKS[acks],
        "compression.type": codec,
        "enable.idempotence": _ACKS[acks] == -1 and retries != 0 if idempotent is None else idempotent,
        "batch.size": batch_size,
        "linger.ms": linger_ms,
        # The broker, not librdkafka, decides which record is too large for a topic.
        "message.max.bytes": 1_000_000_000,
        **({} if retries is None else {"retries": retries}),
        **({"message.timeout.ms": 0} if for_ever else {}),
    }


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the SystemError that librdkafka raises for an exception in a callback, such as that of a signal, into
    KeyboardInterrupt."""
    try:
        yield
    except SystemError as error:
        raise KeyboardInterrupt from error


class Sender:
    """Sends records to one topic. The first error of a record is raised by the next call."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        settings: Mapping[str, object],
        partitioner: str,
        partition: int | None,
        *,
        counts: bool,
    ) -> None:
        """``counts``: `document` has partitions, which costs a call of Python for each record."""
        self._cluster = cluster
        self._topic = topic
        self._now = SystemClock().monotonic
        self._began = self._now()
        self._failure: str | None = None
        self.has_ended = False
        self._partition = partition
        self._offsets: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._records = self._bytes = 0
        self._batch_size = int(str(settings["batch.size"]))
        self._chooser: Partitioner | None = None
        self._is_prepared = False
        self._pending: dict[int, list[dict[str, Any]]] = {}
        self._waiting = 0
        self._largest = 1
        setting, self._make_chooser = PARTITIONERS[partitioner]
        self._producer = cluster.producer(
            {**settings, "partitioner": setting, "delivery.report.only.error": not counts}
        )

    def _prepare(self) -> None:
        """Look up the topic before the first record, not earlier: the request may create the topic."""
        partitions, partition = self._partitions(), self._partition
        if partition is not None and partition not in range(partitions):
            last = partitions - 1
            raise RequestFailedError(f"topic {self._topic} has no partition {partition}, only 0 to {last}")
        if self._make_chooser is not None:
            self._chooser = self._make_chooser(partitions, self._batch_size)
        self._is_prepared = True

    def _partitions(self) -> int:
        """The topic's number of partitions. The request creates the topic if auto.create.topics.enable is set."""
        until = self._now() + self._cluster.timeout
        kafka = self._cluster.kafka
        asked = 0
        while True:
            with self._cluster.errors(f"topic {self._topic}"):
                found = self._producer.list_topics(self._topic, timeout=self._cluster.timeout).topics[self._topic]
            asked += 1
            if found.error is None and found.partitions:
                return len(found.partitions)
            # A topic that is being created is unknown or has no leaders at first.
            waits = found.error is None or found.error.code() == kafka.KafkaError.LEADER_NOT_AVAILABLE or asked < 3
            if not waits or self._now() >= until:
                raise RequestFailedError(f"topic {self._topic}: {self._cluster.describe(found.error)}")
            self._serve(_WAIT)

    def send(self, record: OutgoingRecord) -> None:
        """Pass a record to the producer, with others as soon as `push` is called; wait while its queue is full."""
        if not self._is_prepared:
            self._prepare()
        partition = self._partition if self._partition is not None else record.partition
        size = len(record.key or b"") + len(record.value or b"")
        if partition is None and self._chooser is not None:
            partition = self._chooser.partition(record.key, size)
        message: dict[str, Any] = {"value": record.value, "key": record.key}
        self._records += 1
        self._bytes += size
        self._largest = max(self._largest, size)
        if record.headers or record.timestamp is not None:  # a batch cannot have them
            if record.timestamp is not None:
                message["timestamp"] = record.timestamp
            self.push()
            self._make_room(1)
            with self._cluster.errors(f"topic {self._topic}"):
                self._producer.produce(
                    self._topic,
                    partition=_BY_KEY if partition is None else partition,
                    headers=list(record.headers),
                    on_delivery=self._delivered,
                    **message,
                )
            self._serve(0)
            return
        # The library ignores the partitions of messages in a batch.
        self._pending.setdefault(_BY_KEY if partition is None else partition, []).append(message)
        self._waiting += 1
        if self._waiting >= _BATCH:
            self.push()

    def push(self) -> None:
        """Send the records that wait for others."""
        pending, self._pending, self._waiting = self._pending, {}, 0
        for partition, batch in pending.items():
            self._make_room(len(batch))
            with self._cluster.errors(f"topic {self._topic}"):
                self._producer.produce_batch(self._topic, batch, partition=partition, on_delivery=self._delivered)
            for message in batch:
                if "_error" in message:
                    self._fail(message["_error"], partition)
                    break
        if pending:
            self._serve(0)
        self._check()

    def _make_room(self, records: int) -> None:
        most = max(min(_QUEUE_RECORDS, _QUEUE_BYTES // self._largest), records)
        while len(self._producer) + records > most:
            self._check()
            self._serve(_WAIT)

    def wait(self, seconds: float) -> None:
        self.push()
        self._serve(seconds)
        self._check()

    def _serve(self, seconds: float) -> None:
        with _interruptible():
            self._producer.poll(seconds)

    def flush(self) -> None:
        """Wait until all records are acknowledged. Raises the first error."""
        if not self.has_ended:
            self.push()
        while self._flush_some() and not self.has_ended:
            self._check()
        self._check()

    def _flush_some(self) -> int:
        """The number of records that are not acknowledged yet."""
        with _interruptible():
            return int(self._producer.flush(_WAIT))

    def discard(self) -> None:
        """Drop the records that are not acknowledged; later calls send and raise nothing."""
        self.has_ended = True
        self._producer.purge()

    def document(self) -> dict[str, Any]:
        """The records sent, as JSON."""
        return {
            "topic": self._topic,
            "records": self._records,
            "bytes": self._bytes,
            "seconds": round(self._now() - self._began, 6),
            "partitions": [
                {"partition": number, "records": self._counts[number], "lastOffset": self._offsets.get(number)}
                for number in sorted(self._counts)
            ],
        }

    def _delivered(self, error: Any, message: Any) -> None:
        number = message.partition()
        if error is not None:
            self._fail(error, number)
            return
        self._counts[number] = self._counts.get(number, 0) + 1
        offset = message.offset()
        if offset is not None and offset >= 0:
            self._offsets[number] = offset

    def _fail(self, error: Any, partition: int | None) -> None:
        if self._failure is None:
            where = (
                f"topic {self._topic}{f', partition {partition}' if partition is not None and partition >= 0 else ''}"
            )
            self._failure = f"{where}: {self._cluster.describe(error)}"

    def _check(self) -> None:
        if self._failure is not None and not self.has_ended:
            self.discard()
            raise RequestFailedError(self._failure)
