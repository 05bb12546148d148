"""Reads the files at the top of a log directory that may be in use: log starts, high watermarks, broker id."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from functools import cached_property

from seglog.core.fs import Fs, is_locked
from seglog.core.types import TopicPartition
from seglog.storage.formats.checkpoints import read_clean_shutdown, read_meta_properties, read_offsets
from seglog.storage.formats.paths import HIGH_WATERMARKS, LOCK, LOG_START_OFFSETS
from seglog.storage.formats.watermarks import WATERMARKS, Watermark, read_watermarks


class TopFiles:
    """Each file is read once, at first use, and not updated. `CorruptCheckpointError` names a damaged one."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self.path = path

    @cached_property
    def log_starts(self) -> Mapping[TopicPartition, int]:
        return read_offsets(self._fs, os.path.join(self.path, LOG_START_OFFSETS))

    @cached_property
    def broker(self) -> int | None:
        properties = read_meta_properties(self._fs, self.path)
        return properties.node_id if properties else None

    @cached_property
    def in_use(self) -> bool:
        return is_locked(os.path.join(self.path, LOCK))

    @cached_property
    def is_recovered(self) -> bool:
        """Whether files beside a log match it: a broker has the directory open, or has closed it cleanly."""
        return self.in_use or read_clean_shutdown(self._fs, self.path) is not None

    @cached_property
    def watermarks(self) -> Mapping[TopicPartition, Watermark] | None:
        return read_watermarks(self._fs, self.path)

    @cached_property
    def checkpoint(self) -> Mapping[TopicPartition, int] | None:
        path = os.path.join(self.path, HIGH_WATERMARKS)
        return read_offsets(self._fs, path) if self._fs.exists(path) else None

    @cached_property
    def source(self) -> str | None:
        """The file with the high watermarks, None if there is none."""
        if self.watermarks is not None:
            return WATERMARKS
        return HIGH_WATERMARKS if self.checkpoint is not None else None

    def high_watermark(self, partition: TopicPartition) -> int:
        """The high watermark; 0 if the file does not have the partition yet, as for a broker."""
        if self.watermarks is not None:
            mark = self.watermarks.get(partition)
            return mark.high if mark else 0
        return (self.checkpoint or {}).get(partition, 0)

    def claimed(self, partition: TopicPartition) -> int | None:
        """The high watermark, None if no file has any."""
        return None if self.source is None else self.high_watermark(partition)
