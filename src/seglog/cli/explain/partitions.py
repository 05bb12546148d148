"""Explains partitions by their directory: reads their state, and asks the pure modules for the sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from seglog.cli.explain.reading import (
    group_statement,
    lookup_statements,
    out_of_range_statement,
    tail_statements,
)
from seglog.cli.explain.sentences import (
    Forecast,
    SegmentVerdict,
    cleaning_part,
    cleaning_statements,
    config_statement,
    ignored_statements,
    offsets_statement,
    retention_statements,
    segment_verdicts,
    transaction_statements,
)
from seglog.cli.explain.words import Statement, moment, say
from seglog.cli.offline.coordinator_state import GroupPosition, Groups, Holder, read_holders, read_positions
from seglog.cli.output import count
from seglog.core.errors import CorruptError, OffsetOutOfRangeError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.storage.offline.log_state import LogState, read_delete_horizons, read_log_state
from seglog.storage.offline.lookup import find_offset, find_timestamp
from seglog.storage.offline.top_files import TopFiles
from seglog.storage.offline.topic_configs import ConfigLayer, TopicConfig, directory_layers, merge
from seglog.storage.offline.transaction_state import read_transactions
from seglog.storage.offline.unread_tail import UnreadTail, read_tail


class Question(NamedTuple):
    """What is asked about each partition; an ``offset`` or ``timestamp`` to look up, and the group of a lag."""

    forecast: Forecast
    offset: int | None = None
    timestamp: int | None = None
    group: str | None = None


class ExplainedPartition(NamedTuple):
    state: LogState
    config: TopicConfig
    verdicts: list[SegmentVerdict]
    statements: list[Statement]


class Directory:
    """A log directory, and what its partitions have in common. An internal topic is read once, if it is needed."""

    def __init__(
        self,
        fs: Fs,
        path: str,
        layers: Sequence[ConfigLayer],
        asked: Callable[[str], ConfigLayer] | None = None,
        positions: Callable[[str], Groups] | None = None,
    ) -> None:
        """``asked`` and ``positions`` ask a broker: a topic's configuration, and a group's committed offsets."""
        self._fs = fs
        self._top = TopFiles(fs, path)
        self._layers = layers
        self._asked = asked
        self._positions = positions
        self._configs: dict[str | None, TopicConfig] = {}
        self._holders: dict[int, Holder] | None = None
        self._groups: dict[str, Groups] = {}

    def explain(self, path: str, question: Question) -> ExplainedPartition:
        """`CorruptError` names the file beside the partition that cannot be read."""
        fs, forecast = self._fs, question.forecast
        state = read_log_state(fs, path, self._top)
        config = self._config(state.topic_partition.topic if state.topic_partition else None)
        verdicts = segment_verdicts(state, config.log, forecast)
        statements = [
            config_statement(config),
            *ignored_statements(config),
            offsets_statement(state),
            *retention_statements(state, config.log, verdicts, forecast),
            *cleaning_statements(state, config, forecast),
            *self._horizons(state, config, forecast.now_ms),
            *transaction_statements(state, self._holding(state), forecast.now_ms),
            *self._tail(state, question),
        ]
        if question.offset is not None:
            statements += self._offset(state, question.offset)
        if question.timestamp is not None:
            lookup = find_timestamp(fs, path, question.timestamp)
            asked = f"timestamp {question.timestamp}"
            statements += lookup_statements(asked, lookup, state, offset=None, timestamp=question.timestamp)
        return ExplainedPartition(state, config, verdicts, statements)

    def _config(self, topic: str | None) -> TopicConfig:
        if topic not in self._configs:
            layers = directory_layers(self._fs, self._top.path, topic)
            if self._asked is not None and topic is not None:
                layers.append(self._asked(topic))
            self._configs[topic] = merge([*layers, *self._layers])
        return self._configs[topic]

    def _horizons(self, state: LogState, config: TopicConfig, now_ms: int) -> list[Statement]:
        part = cleaning_part(state, config.log, now_ms) if config.log.compact else None
        found = read_delete_horizons(self._fs, state.path, below=part.first_dirty) if part is not None else None
        if found is None:
            return []
        text = (
            f"{count(found.batches, 'batch', 'es')} in the clean part have tombstones or transaction markers. The "
            f"first round after {moment(found.first_ms, now_ms)} drops the oldest of them, and the first one after "
            f"{moment(found.last_ms, now_ms)} the last: delete.retention.ms counts from the round that saw them first"
        )
        return [
            say("cleaning", "delete.retention.ms", text, batches=found.batches, firstHorizonMs=found.first_ms,
                lastHorizonMs=found.last_ms)
        ]  # fmt: skip

    def _tail(self, state: LogState, question: Question) -> list[Statement]:
        if state.damage is not None:
            return []
        try:
            return self._lag(state, question)
        except CorruptError as error:
            return [say("lag", "damage", f"the end of the log cannot be read: {error}")]

    def _lag(self, state: LogState, question: Question) -> list[Statement]:
        if question.group is None:
            return tail_statements(state, *self._tails(state, None))
        position = self._position(question.group, state.topic_partition)
        if position is None:
            text = f"group {question.group} has no committed offset of it"
            return [say("lag", "committed offset", text, group=question.group, committed=None)]
        start = position.offset
        return [group_statement(position, state, *self._tails(state, start), question.forecast.now_ms)]

    def _tails(self, state: LogState, start: int | None) -> tuple[UnreadTail, UnreadTail]:
        """For both isolation levels."""
        aborted = read_transactions(self._fs, state.path, below=state.high_watermark).aborted
        start = None if start is None else max(start, state.log_start_offset)
        ends = ((state.high_watermark, False), (state.last_stable_offset, True))
        uncommitted, committed = (
            read_tail(self._fs, state.path, end=end, aborted=aborted, committed_only=committed_only, start=start)
            for end, committed_only in ends
        )
        return uncommitted, committed

    def _offset(self, state: LogState, offset: int) -> list[Statement]:
        try:
            lookup = find_offset(self._fs, state.path, offset)
        except OffsetOutOfRangeError:
            return [out_of_range_statement(offset, state)]
        return lookup_statements(f"offset {offset}", lookup, state, offset=offset, timestamp=None)

    # Internal topics

    def _holding(self, state: LogState) -> dict[int, Holder]:
        if not state.transactions:
            return {}
        if self._holders is None:
            self._holders = read_holders(self._fs, self._top.path)
        return self._holders

    def _position(self, group: str, partition: TopicPartition | None) -> GroupPosition | None:
        if group not in self._groups:
            read = self._positions or (lambda name: read_positions(self._fs, self._top.path, name))
            self._groups[group] = read(group)
        return self._groups[group].get(partition) if partition is not None else None
