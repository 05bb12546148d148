"""Records for the page: from files or from brokers, filtered here, within bounds of number, bytes and time.

An answer has the records found, and ``next``, the offset to go on from: a filter that matches nothing ends at the
bounds, not at the end of the log.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import closing
from shlex import quote
from typing import Any, Final, NamedTuple

from seglog.cli.options import OptionError
from seglog.cli.output import json_bytes
from seglog.cli.wire.clients import Cluster
from seglog.cli.wire.consume import ConsumeOptions, StartPosition, received
from seglog.cluster.reassignment_plan import Place
from seglog.console.disk import Disk, Document, Replica
from seglog.console.typed_values import TypedValues
from seglog.core.clock import Clock
from seglog.core.errors import CorruptError, RequestFailedError, SeglogError
from seglog.core.types import TopicPartition
from seglog.records import any_magic
from seglog.records.record import Record

_SCANNED_BYTES: Final = 64 << 20
_SECONDS: Final = 5.0
_DECOMPRESSED: Final = 64 << 20
SHOWN_BYTES: Final = 4096
"""Bytes of a key, a value or a header that a list shows."""
MOST_BYTES: Final = 1 << 20
"""The same, of one record that is asked for alone."""
_POLL: Final = 0.2


class Filter(NamedTuple):
    """Which records to show; None: any. Texts are searched in bytes as UTF-8."""

    key: str | None = None
    value: str | None = None
    header: str | None = None
    """NAME, or NAME=TEXT."""
    json_path: str | None = None
    """PATH, or PATH=VALUE: names and indexes with dots between, as in ``order.items.0.id=7``."""
    since: int | None = None
    until: int | None = None

    def matches(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Any) -> bool:
        """
        >>> one = (5, b"k", b'{"a": {"b": [1, 2]}}', (("h", b"x"),))
        >>> Filter(json_path="a.b.1=2").matches(*one), Filter(header="h=y").matches(*one), Filter(key="k").matches(*one)
        (True, False, True)
        """
        return (
            (self.since is None or timestamp >= self.since)
            and (self.until is None or timestamp <= self.until)
            and (self.key is None or (key is not None and self.key.encode() in key))
            and (self.value is None or (value is not None and self.value.encode() in value))
            and (self.header is None or _has_header(headers, self.header))
            and (self.json_path is None or _has_path(value, self.json_path))
        )


def _has_header(headers: Any, wanted: str) -> bool:
    name, equals, text = wanted.partition("=")
    return any(one == name and (not equals or (value or b"") == text.encode()) for one, value in headers)


def _has_path(value: bytes | None, wanted: str) -> bool:
    path, equals, text = wanted.removeprefix("$").removeprefix(".").partition("=")
    try:
        found = json.loads(value or b"")
        for name in path.split(".") if path else ():
            found = found[int(name)] if isinstance(found, list) else found[name]
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
    return not equals or (found if isinstance(found, str) else json.dumps(found)) == text


class Extent(NamedTuple):
    """The most records of an answer, and the most bytes of a key, a value or a header."""

    records: int
    shown_bytes: int


class _Answer:
    """Collects records up to the bounds."""

    def __init__(self, clock: Clock, wanted: Filter, extent: Extent) -> None:
        self._now = clock.monotonic
        self._until = math.inf
        """The limit begins with the first batch: what is slow before that, such as a connection, has its own."""
        self._wanted = wanted
        self._count, self._most = extent
        self.rows: list[Document] = []
        self.scanned = self.bytes = 0

    def is_full(self) -> bool:
        return len(self.rows) >= self._count or self.bytes >= _SCANNED_BYTES or self._now() > self._until

    def skip(self, size: int) -> None:
        """A batch of so many bytes of which no record is readable."""
        self._begin()
        self.bytes += size

    def _begin(self) -> None:
        if self._until == math.inf:
            self._until = self._now() + _SECONDS

    def add(self, record: Record, **more: object) -> None:
        self._begin()
        self.scanned += 1
        self.bytes += len(record.key or b"") + len(record.value or b"")
        if not self._wanted.matches(record.timestamp, record.key, record.value, record.headers):
            return
        self.rows.append(
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": self._shown(record.key),
                "keySize": _size(record.key),
                "value": self._shown(record.value),
                "valueSize": _size(record.value),
                "headers": [[name, self._shown(value)] for name, value in record.headers[:100]],
                **more,
            }
        )

    def _shown(self, data: bytes | None) -> object:
        if data is None or len(data) <= self._most:
            return json_bytes(data)
        cut = data[: self._most]
        while cut and cut[-1] & 0xC0 == 0x80:  # not in the middle of a character
            cut = cut[:-1]
        return json_bytes(cut[:-1] if cut and cut[-1] >= 0xC0 else cut)

    def document(self, following: int | None, start: int, end: int) -> Document:
        return {
            "records": self.rows,
            "next": following if following is not None and following < end else None,
            "start": start,
            "end": end,
            "scanned": self.scanned,
        }


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def from_disk(
    disk: Disk, clock: Clock, typed: TypedValues, replica: Replica, offset: int, extent: Extent, wanted: Filter
) -> Document:
    """Records of all kinds, control records too. ``damage`` says why the answer ends early."""
    start, end = disk.bounds(replica)
    offset = max(offset, start)
    answer, following, damage = _Answer(clock, wanted, extent), offset, None
    try:
        for chunk, entry in disk.entries_from(replica, offset):
            header = any_magic.describe(chunk.data, entry, deep=False)
            if header.last_offset < offset:
                continue
            any_magic.check(chunk.data, entry)
            records: Iterable[Record] = any_magic.iterate(chunk.data, entry, limit=_DECOMPRESSED)
            if not header.is_control and typed.is_wanted:
                records = typed.decode(*replica.topic_partition, list(records))
            for record in records:
                if record.offset < offset:
                    continue
                if answer.is_full():
                    break
                following = record.offset + 1
                answer.add(
                    record,
                    isControl=header.is_control,
                    isTransactional=header.is_transactional,
                    leaderEpoch=header.leader_epoch,
                    producerId=header.producer_id,
                )
            if answer.is_full():
                break
            following = header.last_offset + 1
    except CorruptError as error:
        damage = str(error)
    after = following if damage is None else None  # the same batch would come again
    return {**answer.document(after, start, end), "damage": damage, "from": "disk"}


class Reader(NamedTuple):
    """Reads from brokers, as `seglog consume` does, without a group. The library has a group even so, and asks for its
    coordinator, whereupon a broker that has none yet creates ``__consumer_offsets``: it reads only where our own client
    cannot."""

    cluster: Cluster
    clock: Clock
    typed: TypedValues

    def read(self, topic: str, partition: int, offset: int, extent: Extent, wanted: Filter, level: str) -> Document:
        place = (topic, partition)
        start, end = (
            self.cluster.first([place])[place],
            self.cluster.offsets([place], "latest", read_committed=level == "read_committed")[place].offset,
        )
        offset = max(offset, start)
        answer, following = _Answer(self.clock, wanted, extent), offset
        if offset < end and self.cluster.has_own_client:
            following = self._fetch(answer, TopicPartition(topic, partition), offset, end, level)
        elif offset < end:
            settings = ConsumeOptions(isolation_level=level).settings(StartPosition("offset", offset))
            consumer = self.cluster.consumer(settings)
            try:
                consumer.assign([self.cluster.kafka.TopicPartition(topic, partition, offset)])
                following = self._take(consumer, answer, following, (topic, partition))
            finally:
                consumer.close()
        return {**answer.document(following, start, end), "damage": None, "from": "brokers"}

    def _fetch(self, answer: _Answer, place: TopicPartition, offset: int, end: int, level: str) -> int:
        from seglog.client.range_fetcher import (
            FetchTarget,
            RangeFetcher,
            readable_batches,
        )  # loads the protocol's schema

        with self.cluster.own_connections() as connections:
            topic_id = connections.metadata([place.topic]).topics[place.topic].topic_id
            fetcher = RangeFetcher(
                connections,
                [FetchTarget(place, topic_id, offset, end, _SCANNED_BYTES)],
                read_committed=level == "read_committed",
                patience=self.cluster.timeout,
                lose=_continue_after,
            )
            with closing(iter(fetcher)) as answers:
                for fetched in answers:
                    following = fetched.position
                    for header, entry in readable_batches(fetched):
                        if answer.is_full():
                            return following
                        if entry is None:
                            answer.skip(header.size)
                            following = header.next_offset
                            continue
                        records = any_magic.decode(fetched.records, entry, limit=_DECOMPRESSED)
                        for record in self.typed.decode(*place, records):
                            if offset <= record.offset < end:
                                if answer.is_full():
                                    return record.offset
                                answer.add(record, leaderEpoch=header.leader_epoch)
                        following = header.next_offset
                    if answer.is_full():
                        return following
                    fetcher.advance(fetched, following)
        return end

    def _take(self, consumer: Any, answer: _Answer, following: int, place: Place) -> int:
        deadline = self.clock.monotonic() + self.cluster.timeout
        while not answer.is_full():
            if not answer.scanned and self.clock.monotonic() > deadline:
                raise RequestFailedError(f"{place[0]}-{place[1]}: no record within {self.cluster.timeout:g} s")
            with self.cluster.errors("consume"):
                batch = consumer.consume(500, _POLL)
            for message in batch:
                error = message.error()
                if error is not None:
                    if error.code() == self.cluster.kafka.KafkaError._PARTITION_EOF:
                        return max(following, int(message.offset()))
                    if error.fatal() or not error.retriable():
                        raise SeglogError(self.cluster.describe(error))
                    continue
                if answer.is_full():
                    return following
                one = received(message)
                following = one.offset + 1
                headers = tuple((name, value) for name, value in one.headers)
                record = Record(one.offset, one.timestamp, one.key, one.value, headers)
                (record,) = self.typed.decode(*place, [record])
                answer.add(record, leaderEpoch=one.leader_epoch)
        return following


def _continue_after(_: str) -> None:
    """Records that are gone meanwhile are not shown."""


def commands(topic: str, partition: int, offset: int, bootstrap: str | None, path: str | None) -> Mapping[str, str]:
    """What to type for the same record."""
    found: dict[str, str] = {}
    if bootstrap is not None:
        found["seglog"] = f"seglog consume {topic} -p {partition} -o {offset} -c 1 -b {bootstrap} --json"
        found["kcat"] = f"kcat -C -b {bootstrap} -t {topic} -p {partition} -o {offset} -c 1"
    if path is not None:
        found["find"] = f"seglog find {quote(path)} --offset {offset} --explain"
    return found


def check_filter(wanted: Filter) -> Filter:
    """`OptionError` for a range of time that is empty."""
    if wanted.since is not None and wanted.until is not None and wanted.since > wanted.until:
        raise OptionError(f"since {wanted.since} is after until {wanted.until}")
    return wanted
