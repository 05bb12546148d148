"""Changes of logs that must be durable before their replica goes on; `LogDir.carry_out` makes many at once."""

from __future__ import annotations

from typing import NamedTuple

from seglog.core.types import TopicPartition


class BeginEpoch(NamedTuple):
    """A leader's epoch begins at the log's end (KIP-101)."""

    partition: TopicPartition
    epoch: int


class Cut(NamedTuple):
    """Truncate the log to ``offset``, and forget epochs that begin there or later. With ``saves``, copy the records
    from ``start`` to ``end`` (exclusive), which are cut, first."""

    partition: TopicPartition
    offset: int
    start: int
    end: int
    saves: bool


class StartAt(NamedTuple):
    """Drop everything; the log begins and ends at ``offset``."""

    partition: TopicPartition
    offset: int


class MoveStart(NamedTuple):
    """Delete the records before ``offset``."""

    partition: TopicPartition
    offset: int


LogChange = BeginEpoch | Cut | StartAt | MoveStart
