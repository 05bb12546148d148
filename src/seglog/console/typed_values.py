"""Keys and values as typed JSON for the page, by the decoder of `seglog consume --value-format`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from seglog.cli.wire.formats import ConsumedRecord
from seglog.cli.wire.typed_records import TypedRecords
from seglog.core.errors import SeglogError
from seglog.records.record import Record


class TypedValues:
    """``make`` is the decoder of a topic; ``is_wanted`` says whether there are any. Any thread may call `decode`."""

    def __init__(self, make: Callable[[Sequence[str]], TypedRecords | None], *, is_wanted: bool) -> None:
        self._make = make
        self.is_wanted = is_wanted
        self._lock = threading.Lock()
        self._known: dict[str, TypedRecords | None] = {}  # guarded by _lock

    def decode(self, topic: str, partition: int, records: Sequence[Record]) -> list[Record]:
        """The records with JSON for their bytes. One that cannot be decoded stays as it is."""
        if not self.is_wanted:
            return list(records)
        with self._lock:
            if topic not in self._known:
                self._known[topic] = self._make([topic])
            decoder = self._known[topic]
            if decoder is None or not records:
                return list(records)
            try:
                return _decode(decoder, topic, partition, records)
            except SeglogError:
                return [found for one in records for found in _alone(decoder, topic, partition, one)]


def _alone(decoder: TypedRecords, topic: str, partition: int, record: Record) -> list[Record]:
    try:
        return _decode(decoder, topic, partition, [record])
    except SeglogError:
        return [record]


def _decode(decoder: TypedRecords, topic: str, partition: int, records: Sequence[Record]) -> list[Record]:
    consumed = [
        ConsumedRecord(topic, partition, one.offset, one.timestamp, 0, one.key, one.value, one.headers, None)
        for one in records
    ]
    return [
        record._replace(key=found.key, value=found.value)
        for record, found in zip(records, decoder.decode(consumed), strict=True)
    ]
