"""Brokers as what a query reads from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import BrokerAddress, ClusterConnections, ClusterMetadata
from seglog.client.consumer_groups import commit_offsets
from seglog.client.kept_connections import connections
from seglog.client.leader_offsets import EARLIEST, LATEST, OffsetQuestion, answer_offsets
from seglog.client.retries import ask_patiently
from seglog.core.clock import SystemClock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidConfigError, RequestFailedError, UnknownPartitionError, UnknownTopicError
from seglog.core.types import TopicPartition
from seglog.sources.brokers.planning import BrokerExtent, FetchRange, plan
from seglog.sources.brokers.sampling import bytes_per_offset
from seglog.sources.options.read_options import Assign, ReadOptions, Selection, Subscribe
from seglog.sources.planning import select
from seglog.sources.ranges import OffsetRange
from seglog.sources.record_source import Available, Survey

if TYPE_CHECKING:
    import pyarrow as pa


class BrokerSource:
    """The cluster that ``options`` name. `RecordSource` describes the methods."""

    def __init__(self, config: ClientConfig, options: ReadOptions, cluster: ClusterConnections | None = None) -> None:
        """``cluster`` is for the thread that uses this source; without it, the process keeps connections."""
        self._config = config
        self._options = options
        self._own_cluster = cluster

    @property
    def _cluster(self) -> ClusterConnections:
        return self._own_cluster or connections(self._config)

    def survey(
        self, *, until: str | None = None, only: Sequence[TopicPartition] | None = None, may_be_away: bool = False
    ) -> Survey[BrokerExtent]:
        """``until`` changes nothing: a broker hands out only what is committed. A partition without a leader is waited
        for, and if brokers ``may_be_away``, so is a broker, for ``request.timeout.ms``."""
        del until
        patience = self._config.timeout if may_be_away else 0
        for attempt in range(max(self._options.offset_retries, 1)):
            if attempt > 1:  # the first time a topic was probably deleted; the next time brokers disagree about it
                SystemClock().sleep(self._options.offset_retry_ms / 1000)
            with suppress(UnknownPartitionError):
                return ask_patiently(self._config, patience, lambda: self._survey(only))
        return ask_patiently(self._config, patience, lambda: self._survey(only))

    def _survey(self, only: Sequence[TopicPartition] | None) -> Survey[BrokerExtent]:
        options = self._options
        selection = options.selection if only is None else Assign(partitions=tuple(only))
        match selection:
            case Subscribe(topics=topics):
                names: set[str] | None = set(topics)
            case Assign(partitions=partitions):
                names = {one.topic for one in partitions}
            case _:
                names = None
        metadata = self._cluster.metadata(names)
        _check_allowed(metadata)
        try:
            chosen = select(selection, _partitions(metadata)) if only != [] and only != () else []
        except UnknownTopicError as error:
            raise UnknownTopicError(f"{self._where}: {self._among_all(selection) or error}") from None
        ends = dict.fromkeys(chosen, LATEST)
        questions = [OffsetQuestion(dict.fromkeys(chosen, EARLIEST)), OffsetQuestion(ends)]
        if options.read_committed:
            questions.append(OffsetQuestion(ends, read_committed=True))
        starts, marks, *others = self._offsets(questions, metadata)
        stable = others[0] if others else marks
        bound = "last stable offset" if options.read_committed else "high watermark"
        brokers = {node: BrokerAddress(node, address) for node, address in metadata.brokers.items()}
        extents = [
            BrokerExtent(
                topic_partition=one,
                log_start=starts[one],
                log_end=max(marks[one], starts[one]),
                until=max(min(stable[one], marks[one]), starts[one]),
                bound=bound,
                topic_id=metadata.topics[one.topic].topic_id,
                leader=None if (leader := metadata.leader(one)) is None else brokers.get(leader.leader),
            )
            for one in chosen
        ]
        return Survey(extents, [])

    def _among_all(self, selection: Selection) -> UnknownTopicError | None:
        """The error that names topics of the cluster: the brokers were asked only about those of the selection."""
        try:
            select(selection, _partitions(self._cluster.metadata()))
        except UnknownTopicError as error:
            return error
        return None

    def _offsets(
        self, questions: Sequence[OffsetQuestion], metadata: ClusterMetadata | None = None
    ) -> list[dict[TopicPartition, int]]:
        return answer_offsets(
            self._cluster,
            questions,
            metadata,
            retries=self._options.offset_retries,
            retry_wait=self._options.offset_retry_ms / 1000,
        )

    @property
    def _where(self) -> str:
        return ",".join(map(str, self._config.bootstrap))

    def available(self) -> Available:
        return Available(frozenset(_partitions(self._cluster.metadata())), is_partial=False)

    def find_by_time(self, wanted: Sequence[tuple[BrokerExtent, int]]) -> list[int | None]:
        times = {extent.topic_partition: timestamp for extent, timestamp in wanted}
        (found,) = self._offsets([OffsetQuestion(times, self._options.read_committed)])
        offsets = [found[extent.topic_partition] for extent, _ in wanted]
        return [offset if offset >= 0 else None for offset in offsets]

    def plan(
        self, extents: Sequence[BrokerExtent], ranges: Mapping[TopicPartition, OffsetRange], cores: int | None
    ) -> list[FetchRange]:
        return plan(
            extents,
            ranges,
            bytes_per_offset(self._cluster, extents, ranges),
            max_bytes=self._options.max_bytes,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records,
            cores=cores,
        )

    def read(self, task: Sequence[FetchRange], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from seglog.sources.brokers.task_reader import read_ranges

        return read_ranges(self._cluster, task, schema, self._options)

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit to the group of ``commitToGroup``. A failure is a warning: the checkpoint decides, not the group."""
        group = self._options.commit_to_group
        if group is None or not offsets:
            return
        try:
            commit_offsets(self._cluster, group, offsets)
        except RequestFailedError as error:
            warnings.warn(f"seglog: commitToGroup: {error}", stacklevel=2)


def _partitions(metadata: ClusterMetadata) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, number)
        for topic in metadata.topics.values()
        if topic.error in (0, ErrorCode.LEADER_NOT_AVAILABLE)
        for number in topic.partitions
    ]


def _check_allowed(metadata: ClusterMetadata) -> None:
    for topic in metadata.topics.values():
        if topic.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise RequestFailedError(f"topic {topic.name}: {ErrorCode.TOPIC_AUTHORIZATION_FAILED.name}")
        if topic.error == ErrorCode.INVALID_TOPIC_EXCEPTION:
            raise InvalidConfigError(f"topic {topic.name!r}: the broker refuses the name")
