"""Compaction of partitions that are read through brokers, which do not report how far it has come.

So a compacted topic is read as of its end only. While a task reads, the end of a busy partition moves on, and a round
may take a record before it is read because of a newer one after the planned end. The task therefore reads on until it
has reached the end: then every key is there, with its planned value or a newer one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from seglog.client.client_config import ClientConfig
from seglog.core.errors import OffsetOutOfRangeError, UnknownTopicError
from seglog.core.types import TopicPartition
from seglog.sources.brokers.planning import BrokerExtent, FetchRange
from seglog.sources.brokers.source import BrokerSource
from seglog.sources.brokers.topic_configs import CLEANUP_POLICY, may_be_compacted, topic_configs
from seglog.sources.latest.ranges import LatestRange, deleted_meanwhile
from seglog.sources.options.read_options import ReadOptions, option_name
from seglog.sources.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

_ROUNDS: Final = 10
"""How often a task asks for a new end. Each time fewer records have arrived meanwhile."""


class BrokerHistory:
    """`History` of the partitions of a cluster."""

    def __init__(self, source: BrokerSource, config: ClientConfig, options: ReadOptions) -> None:
        self._source = source
        self._config = config
        self._option = option_name("ending", options.ending)
        self._fails = options.fail_on_data_loss

    def check(
        self, extents: Sequence[BrokerExtent], ranges: Mapping[TopicPartition, OffsetRange]
    ) -> frozenset[TopicPartition]:
        topics = self._compacted({extent.topic_partition.topic for extent in extents})
        compacted = [extent for extent in extents if extent.topic_partition.topic in topics]
        for extent in compacted:
            until = ranges[extent.topic_partition].end
            if until < extent.until:
                raise OffsetOutOfRangeError(
                    f"option {self._option}: the newest values of {extent.topic_partition} as of offset {until} may be "
                    f"gone: the topic is compacted, and brokers do not say up to which offset; read it up to its end, "
                    "or from its directory"
                )
        return frozenset(extent.topic_partition for extent in compacted)

    def _compacted(self, topics: set[str]) -> frozenset[str]:
        """Those of ``topics`` that are compacted, or whose configuration we may not see."""
        return frozenset(
            topic
            for topic, found in topic_configs(self._config, topics, (CLEANUP_POLICY,)).items()
            if may_be_compacted(found)
        )

    def range_of(self, one: FetchRange, extent: BrokerExtent, until: int, *, follows: bool) -> LatestRange:
        del extent
        return LatestRange(range=one, until=until, follows=follows)

    def read(self, task: LatestRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        one: FetchRange = task.range
        yield from self._source.read([one], schema)
        for _ in range(_ROUNDS if task.follows else 0):
            try:
                (extent,) = self._source.survey(only=[one.topic_partition]).extents
            except UnknownTopicError:
                deleted_meanwhile(one.topic_partition, one.offsets.end, fail=self._fails)
                break
            if extent.until <= one.offsets.end:
                break
            one = replace(one, offsets=OffsetRange(one.offsets.end, extent.until))
            yield from self._source.read([one], schema)
