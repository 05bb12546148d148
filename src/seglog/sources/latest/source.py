"""A source of the newest record of each key, made of a source of all records."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from seglog.core.errors import InvalidRecordError
from seglog.core.fs import OsFs
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.sources.brokers.source import BrokerSource
from seglog.sources.directories.source import DirectorySource
from seglog.sources.latest.broker_history import BrokerHistory
from seglog.sources.latest.directory_history import DirectoryHistory
from seglog.sources.latest.ranges import History, LatestRange
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.ranges import OffsetRange
from seglog.sources.record_source import Available, RecordSource, Survey

if TYPE_CHECKING:
    import pyarrow as pa

_TOMBSTONE: Final = "isTombstone"
_NEEDED: Final = ("key", "offset", _TOMBSTONE)


def latest_source(options: ReadOptions) -> LatestSource:
    """The source that the options name. A damaged record could be the newest of its key, so damage is never skipped."""
    options = replace(options, permissive=False)
    whole = replace(options, min_partitions=None, max_records=None, max_bytes=MAX_INT64)
    if options.client is None:
        files, all_files = DirectorySource(options), DirectorySource(whole)
        return LatestSource(files, all_files, DirectoryHistory(files, options), options)
    brokers, all_brokers = BrokerSource(options.client, options), BrokerSource(options.client, whole)
    return LatestSource(brokers, all_brokers, BrokerHistory(brokers, options.client, options), options)


class LatestSource:
    """`RecordSource` describes the methods.

    A task of the view ``latest`` reads the whole range of a partition. Those of ``latest-parts`` read parts of it, and
    return tombstones too, because an older part may have a value of the key.
    """

    def __init__(self, divided: RecordSource, whole: RecordSource, history: History, options: ReadOptions) -> None:
        """``divided`` plans a partition as options say, ``whole`` as one range."""
        self._divided = divided
        self._whole = whole
        self._history = history
        self._options = options
        self._is_part = options.view == "latest-parts"

    def survey(
        self, *, until: str | None = None, only: Sequence[TopicPartition] | None = None, may_be_away: bool = False
    ) -> Survey[Any]:
        return self._divided.survey(until=until, only=only, may_be_away=may_be_away)

    def available(self) -> Available:
        return self._divided.available()

    def find_by_time(self, wanted: Sequence[tuple[Any, int]]) -> list[int | None]:
        return self._divided.find_by_time(wanted)

    def plan(
        self, extents: Sequence[Any], ranges: Mapping[TopicPartition, OffsetRange], cores: int | None
    ) -> list[LatestRange]:
        followed = self._history.check(extents, ranges)
        by_partition = {extent.topic_partition: extent for extent in extents}
        divided = set(by_partition) - followed if self._is_part else set()
        found = [
            *self._divided.plan([by_partition[one] for one in sorted(divided)], ranges, cores),
            *self._whole.plan([extent for one, extent in by_partition.items() if one not in divided], ranges, 1),
        ]
        return [
            self._history.range_of(
                one,
                by_partition[one.topic_partition],
                ranges[one.topic_partition].end,
                follows=one.topic_partition in followed,
            )
            for one in sorted(found, key=lambda one: (one.topic_partition, one.offsets))
        ]

    def read(self, task: Sequence[LatestRange], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from seglog.sources.output_batches import output_batches

        for one in task:
            for batch in self._newest(one, schema):
                yield from output_batches(batch, schema, self._options)

    def _newest(self, task: LatestRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        from seglog.records.columns import schema_of
        from seglog.sources.latest.newest_rows import NewestRows
        from seglog.sources.latest.spill_file import SpillFile, spill_directory

        names = list(dict.fromkeys([*schema.names, *_NEEDED]))
        wide = schema_of(names)
        new_file = partial(SpillFile, OsFs(), spill_directory(os.environ))
        newest = NewestRows(self._options.max_memory, new_file, hash_key())
        try:
            for batch in self._history.read(task, wide):
                _check_keys(batch, task.range.topic_partition)
                newest.add(batch)
            for batch in newest.take():
                yield batch if self._is_part else batch.filter(pc.invert(batch.column(_TOMBSTONE)))
        finally:
            newest.close()

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A batch query has no group to commit to."""


def hash_key() -> tuple[int, int]:
    """Two random numbers, for `NewestRows`."""
    random = os.urandom(16)
    return int.from_bytes(random[:8]) >> 1, int.from_bytes(random[8:]) >> 1


def _check_keys(batch: pa.RecordBatch, partition: TopicPartition) -> None:
    keys = batch.column("key")
    if keys.null_count:
        offset = batch.column("offset").filter(keys.is_null())[0].as_py()
        raise InvalidRecordError(f"{partition}, offset {offset}: a record without a key has no newest value")
