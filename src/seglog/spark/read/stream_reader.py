"""``spark.readStream.format("seglog")``: micro-batches over log directories, which others may be writing meanwhile.

Spark keeps one `SeglogStreamReader` in a process of its own while the query runs, asks it for the ends of the logs and
the ranges to read, and sends a copy to the workers. Decisions are in `stream_planning`; this module reads files.
Offsets in the checkpoint have the form of ``format("kafka")``: a query can move from there to here, and back.

Batch 0 pins the start of the stream. Spark does not store `initialOffset` but asks again after a restart. So the first
`latestOffset` returns the initial offsets themselves: Spark stores them in the checkpoint as the end of an empty batch
0, and everything later starts there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from seglog.core.clock import Clock, SystemClock
from seglog.core.errors import UnknownTopicError
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.sources.options.read_options import LATEST, Bound, ReadOptions, TimestampBound
from seglog.sources.planning import selector
from seglog.sources.ranges import PartitionExtent
from seglog.sources.record_source import Survey
from seglog.sources.stream_planning import (
    StreamOffsets,
    StreamPartition,
    check_selected,
    check_targets,
    is_too_little,
    latest_offsets,
    offsets_from_json,
    offsets_to_json,
    plan_batch,
    rate_limit,
    recreated,
    remaining_targets,
    report_losses,
    wait_where_known,
)
from seglog.spark.read.batch_reader import SeglogReader
from seglog.spark.runtime.error_sentences import ErrorSentences
from seglog.values.reader_schema import ReadFormats

if TYPE_CHECKING:
    import pyarrow as pa

_SURVEYS: Final = 4
"""Further surveys if topics are deleted meanwhile."""
_UNLIMITED: Final = MAX_INT64
"""Our default limit is never "all available", so that this word is known to be ``Trigger.Once``'s."""

JsonOffsets = dict[str, dict[str, int]]


class _Snapshot(NamedTuple):
    """The partitions at one moment. ``states`` also has those that wait for a missing directory."""

    extents: Mapping[TopicPartition, PartitionExtent]
    states: Mapping[TopicPartition, StreamPartition]

    @property
    def log_starts(self) -> dict[TopicPartition, int]:
        return {partition: state.log_start for partition, state in self.states.items()}


class SeglogStreamReader(ErrorSentences, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The position of a stream and its next batch. ``clock`` is for ``maxTriggerDelay``."""

    def __init__(
        self,
        schema: StructType,
        options: ReadOptions,
        clock: Clock | None = None,
        *,
        formats: ReadFormats | None = None,
    ) -> None:
        self._schema = schema
        self._reader = SeglogReader(schema, options, formats)
        self._options = options
        self._clock = clock or SystemClock()
        self._initial: dict[TopicPartition, int] | None = None
        self._is_begun = False
        """Whether a batch was planned or an end returned; after that the start is not pinned."""
        self._is_available_now = False
        self._targets: dict[TopicPartition, int] | None = None
        self._latest: dict[TopicPartition, int] = {}
        self._looked: _Snapshot | None = None
        """Where the last ends come from, until a batch is planned with them."""
        self._ids: dict[str, UUID] = {}
        """The topics' ids as of the last offsets. A checkpoint stores none, so they are known only within this run."""
        self._last_trigger: float | None = None
        self._published: dict[TopicPartition, int] = {}

    def initialOffset(self) -> JsonOffsets:
        """The start of a new query. Spark asks twice and must get the same answer."""
        if self._initial is None:
            extents, starts = self._reader.extents_and(self._reader.starts)
            self._initial = self._within(starts, extents)
            self._ids |= _topic_ids(extents)
        return offsets_to_json(self._initial)

    def _within(self, offsets: StreamOffsets, extents: Sequence[PartitionExtent]) -> dict[TopicPartition, int]:
        """Offsets from options must exist; with ``failOnDataLoss=false`` the nearest existing ones are used."""
        found, losses = {}, []
        for extent in extents:
            partition = extent.topic_partition
            found[partition] = min(max(offsets[partition], extent.log_start), extent.log_end)
            if found[partition] != offsets[partition]:
                losses.append(
                    f"startingOffsets {offsets[partition]} of {partition} is outside of the log, which has offsets "
                    f"{extent.log_start} to {extent.log_end}"
                )
        report_losses(losses, fail=self._options.fail_on_data_loss, warn=_warn)
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        """The targets are fetched once, when the first end is asked for."""
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_offsets_per_trigger or _UNLIMITED)

    def reportLatestOffset(self) -> JsonOffsets | None:
        """The ends of the logs when the last batch was planned, for the query's progress."""
        return offsets_to_json(self._latest) if self._latest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> JsonOffsets:
        """The end of the next batch from ``start``, or ``start`` itself for no batch."""
        begin = self._known_offsets(start)
        self._publish(begin)
        look = self._looked = self._look(begin)
        latest = latest_offsets(look.states, begin)
        if self._is_available_now:
            if self._targets is None:
                self._targets = latest
            elif not self._options.fail_on_data_loss:
                self._targets = remaining_targets(self._targets, latest)
            latest = self._targets
        self._latest = dict(latest)
        is_first, self._is_begun = not self._is_begun, True
        if is_first and begin == self._initial and (limit != ReadAllAvailable() or _moves(self._options.starting)):
            return offsets_to_json(begin)
        if isinstance(limit, ReadAllAvailable):
            return offsets_to_json(latest)
        log_starts = look.log_starts
        if self._waits(begin, latest, log_starts):
            return offsets_to_json(begin)
        if isinstance(limit, ReadMaxRows) and limit.max_rows < _UNLIMITED:
            latest = rate_limit(limit.max_rows, begin, latest, log_starts)
        return offsets_to_json(latest)

    def _known_offsets(self, value: object) -> dict[TopicPartition, int]:
        """Offsets of the checkpoint, perhaps from an earlier run of the query, whose sources may have differed."""
        offsets = offsets_from_json(value)
        check_selected(offsets, selector(self._options.selection))
        return offsets

    def commit(self, end: dict[str, Any]) -> None:
        """The batch that ended at ``end`` is committed. Spark says so when it plans the next one."""
        self._publish(offsets_from_json(end))

    def _publish(self, committed: StreamOffsets) -> None:
        """Tell others how far the query is. Spark asks for an end only after the batch before has been committed, also
        after the last one of ``AvailableNow``, which it never tells `commit`."""
        if committed != self._published:
            self._published = dict(committed)
            self._reader.source.publish(committed)

    def _waits(self, begin: StreamOffsets, latest: StreamOffsets, log_starts: StreamOffsets) -> bool:
        """Whether to wait, by ``minOffsetsPerTrigger`` and ``maxTriggerDelay``. The first batch never waits.

        ``AvailableNow`` does not wait either: a postponed batch would end the query before it has read everything.
        """
        if self._options.min_offsets_per_trigger is None or self._is_available_now:
            return False
        now = self._clock.monotonic()
        if (
            self._last_trigger is not None
            and (now - self._last_trigger) * 1000 < self._options.max_trigger_delay_ms
            and is_too_little(self._options.min_offsets_per_trigger, begin, latest, log_starts)
        ):
            return True
        self._last_trigger = now
        return False

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch. If records are missing, raise `DataLossError` or warn, by ``failOnDataLoss``."""
        begin, finish = self._known_offsets(start), self._known_offsets(end)
        # Spark calls this before `latestOffset` to repeat a batch that it had planned before a stop. Only the first
        # batch starts at the initial offsets.
        replays_first = not self._is_begun and begin == self._initial
        self._is_begun = True
        # The plan uses the snapshot that the end came from; tasks notice what disappears meanwhile. After a restart the
        # end was decided earlier, perhaps from a later high watermark than the one visible now.
        look, self._looked = self._looked or self._look(begin, until="logEnd"), None
        if self._targets is not None:
            check_targets(self._targets, finish, look.states, fail=self._options.fail_on_data_loss)
        left = set(begin) - set(finish)
        unselected = left & self._reader.source.available().partitions if left else frozenset()
        planned = plan_batch(begin, finish, look.states, replays_first=replays_first, unselected=unselected)
        report_losses(planned.losses, fail=self._options.fail_on_data_loss, warn=_warn)
        extents = [extent for partition, extent in look.extents.items() if partition in planned.ranges]
        return self._reader.input_partitions(self._reader.plan(extents, planned.ranges))

    def _look(self, known: StreamOffsets, until: str | None = None) -> _Snapshot:
        """The partitions that exist. If a topic was read before and no longer exists, that is a loss.

        While a part of the source is out of reach, its partitions are not lost: they wait at their ``known`` offset.
        """
        found = self._survey(known, until)
        for note in found.notes:
            _warn(f"seglog: {note}")
        ids = _topic_ids(found.extents)
        losses = recreated(known, self._ids, ids)
        self._ids |= ids
        report_losses(losses, fail=self._options.fail_on_data_loss, warn=_warn)
        extents = {extent.topic_partition: extent for extent in found.extents}
        states = {
            partition: StreamPartition(extent.log_start, extent.until, extent.log_end)
            for partition, extent in extents.items()
        }
        return _Snapshot(extents, wait_where_known(states, known) if found.is_partial else states)

    def _survey(self, known: StreamOffsets, until: str | None) -> Survey[Any]:
        source = self._reader.source
        only: list[TopicPartition] | None = None
        for _ in range(_SURVEYS):
            try:
                return source.survey(until=until, only=only, may_be_away=True)
            except UnknownTopicError as error:
                available = source.available()
                if only is None and not available.is_partial:
                    report_losses([str(error)], fail=self._options.fail_on_data_loss, warn=_warn)
                only = sorted(available.partitions & set(known))
        return source.survey(until=until, only=only, may_be_away=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)


def _topic_ids(extents: Sequence[PartitionExtent]) -> dict[str, UUID]:
    return {extent.topic_partition.topic: extent.topic_id for extent in extents if extent.topic_id is not None}


def _moves(starting: Bound) -> bool:
    """Whether the start depends on when it is computed."""
    if isinstance(starting, TimestampBound):
        return starting.strategy == "latest"
    return LATEST in ({starting} if isinstance(starting, int) else set(starting.values()))


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)
