"""The log that a table is made from, as it is now: its committed offsets, its topic's id, its leader epochs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import Fs, OsFs
from seglog.core.suggestions import did_you_mean
from seglog.sources.brokers.planning import BrokerExtent
from seglog.sources.directories.planning import DirectoryExtent
from seglog.sources.options.read_options import OPTIONS, ReadOptions, parse_options
from seglog.sources.ranges import PartitionExtent
from seglog.sources.record_source import RecordSource
from seglog.storage.formats.checkpoints import encode_id, read_leader_epochs, read_partition_metadata
from seglog.storage.log.epochs import LeaderEpochs
from seglog.table.iceberg.positions import Positions

_BROKERS: Final = re.compile(r"[^/,]+:\d+(,[^/,]+:\d+)*")
Log = str | os.PathLike[str]
"""A log directory, or several of one cluster separated by commas; or brokers, as in ``host:9092,other:9092``."""


class LogState(NamedTuple):
    """A topic of a log. ``epochs`` has a leader-epoch cache for each partition, empty if nothing is known.

    A table learns nothing about epochs from brokers.
    """

    extents: Sequence[Any]
    topic_id: str | None
    epochs: Mapping[int, LeaderEpochs]
    notes: Sequence[str]

    def epochs_before(self, positions: Positions) -> dict[int, int]:
        """The log's leader epoch of the offset before each position, -1 if it is unknown."""
        return {
            number: self.epochs[number].epoch_for_offset(position.upto - 1)
            for number, position in positions.partitions.items()
            if number in self.epochs
        }


def log_options(log: Log, topic: str, given: Mapping[str, str], takes: Collection[str], **always: str) -> ReadOptions:
    """How a table reads the committed records of a topic: by the options that a user has ``given``, which are among
    those that it ``takes`` and ``kafka.*``, and those that it ``always`` has. Raises `InvalidConfigError`."""
    for name in given:
        known = OPTIONS.find(name)
        if not name.lower().startswith("kafka.") and (known is None or known.name not in takes):
            taken = ", ".join([*takes, "kafka.*"])
            raise InvalidConfigError(
                f"this table does not take option {name}; it takes {taken}{did_you_mean(name, takes)}"
            )
    return parse_options({**given, **committed_records(log, topic), **always})


def committed_records(log: Log, topic: str) -> dict[str, str]:
    """The source's options that read the committed records of a topic."""
    text = os.fspath(log)
    where = "kafka.bootstrap.servers" if _BROKERS.fullmatch(text) else "path"
    return {where: text, "subscribe": topic, "isolationLevel": "read_committed"}


def survey_log(source: RecordSource, positions: Positions | None) -> LogState:
    """The log now. Epochs of partitions that end at their position are not read: a table has nothing new of them."""
    survey = source.survey()
    known = {} if positions is None else positions.partitions
    fs = OsFs()
    epochs = {}
    for extent in survey.extents:
        number = extent.topic_partition.partition
        is_same = number in known and known[number].upto == extent.until
        epochs[number] = LeaderEpochs(() if is_same else _epochs(fs, extent))
    return LogState(survey.extents, _topic_id(fs, survey.extents), epochs, survey.notes)


def _epochs(fs: Fs, extent: PartitionExtent) -> Sequence[tuple[int, int]]:
    return read_leader_epochs(fs, extent.directory) if isinstance(extent, DirectoryExtent) else ()


def _topic_id(fs: Fs, extents: Sequence[PartitionExtent]) -> str | None:
    """None of a topic of an old Kafka, which has no id."""
    for extent in extents:
        if isinstance(extent, DirectoryExtent):
            found = read_partition_metadata(fs, extent.directory)
        elif isinstance(extent, BrokerExtent):
            found = extent.topic_id
        else:
            found = None
        if found is not None:
            return encode_id(found)
    return None
