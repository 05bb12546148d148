"""Refuses to continue a keyed table where compaction may have removed tombstones that the table has not seen.

A key that was deleted would stay in the table for ever, and nothing would show it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from seglog.core.errors import DataLossError
from seglog.core.fs import OsFs
from seglog.sources.brokers.planning import BrokerExtent
from seglog.sources.brokers.topic_configs import CLEANUP_POLICY, DELETE_RETENTION, may_be_compacted, topic_configs
from seglog.sources.directories.planning import DirectoryExtent
from seglog.sources.latest.directory_history import objection_to
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.ranges import PartitionExtent
from seglog.storage.formats.topics_file import read_topics
from seglog.table.iceberg.positions import Position
from seglog.table.keyed.tombstone_age import objection

_HINT = "tombstones may be gone: a deleted key would stay. Build the table anew, with --rebuild"


class CompactionGuard:
    """The extents of a survey of one topic, and what is known of its compaction."""

    def __init__(
        self, options: ReadOptions, topic: str, extents: Sequence[PartitionExtent], given_retention_ms: int | None
    ) -> None:
        """``given_retention_ms``: the topic's delete.retention.ms, for a log that does not tell it."""
        self._fs = OsFs()
        self._extents = extents
        self._is_compacted = True
        config: Mapping[str, str] = {}
        if options.client is not None:
            config = topic_configs(options.client, (topic,), (CLEANUP_POLICY, DELETE_RETENTION))[topic]
            self._is_compacted = may_be_compacted(config)
        else:
            directories = {os.path.dirname(one.directory) for one in extents if isinstance(one, DirectoryExtent)}
            for directory in sorted(directories):
                entry = read_topics(self._fs, directory).get(topic)
                config = config if entry is None else {**config, **entry.config}
        self.delete_retention_ms = int(config[DELETE_RETENTION]) if config.get(DELETE_RETENTION) else given_retention_ms

    def check(self, positions: Mapping[int, Position], elapsed_ms: int) -> None:
        """Raise `DataLossError` if tombstones after ``positions``, the log's ends ``elapsed_ms`` ago, may be gone.

        It must be called again when the records after them have been read.
        """
        for extent in self._extents:
            position = positions.get(extent.topic_partition.partition)
            if position is None or position.upto == extent.log_end:
                continue
            passed = self._passed(extent, position.upto)
            reason = None if passed is None else objection(passed, elapsed_ms, self.delete_retention_ms)
            if reason is not None:
                raise DataLossError(
                    f"the table has {extent.topic_partition} up to offset {position.upto}; {reason}, so {_HINT}"
                    + (", or give --delete-retention" if self.delete_retention_ms is None else "")
                )

    def _passed(self, extent: PartitionExtent, offset: int) -> str | None:
        """How compaction may have passed an offset; None if it has not."""
        if isinstance(extent, DirectoryExtent):
            directories = (extent.directory, *extent.others)
            return objection_to(self._fs, extent.topic_partition, directories, offset)
        if isinstance(extent, BrokerExtent) and not self._is_compacted:
            return None
        return "brokers do not tell how far the topic is compacted"
