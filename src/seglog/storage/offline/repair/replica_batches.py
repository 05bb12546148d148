"""The batches of another replica, from which damaged ones are restored byte for byte.

Replicas of a partition have the same batches at the same offsets, unless each has compacted its own. A batch is taken
only if it and its neighbours fill the damaged bytes exactly, its CRC is right, and its leader epoch is that of our
checkpoint.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from seglog.core.errors import CorruptError, InvalidLogDirError
from seglog.core.fs import Fs
from seglog.core.types import NO_EPOCH
from seglog.records import any_magic
from seglog.storage.formats.batch_walk import walk
from seglog.storage.formats.checkpoints import encode_id, read_partition_metadata
from seglog.storage.formats.paths import is_partition, list_segments
from seglog.storage.log.epochs import LeaderEpochs


class ReplicaBytes(NamedTuple):
    """Whole batches of a replica; offsets from ``first`` to ``last``."""

    data: bytes
    first: int
    last: int
    file: str


class ReplicaBatches:
    """The partition of a replica, at its directory ``path``. It is only read, and may be in use."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self.path = path

    def find(
        self, low: int, high: int, size: int, epochs: LeaderEpochs | None, *, is_tail: bool = False
    ) -> ReplicaBytes | None:
        """All batches with offsets from ``low`` to ``high``, if they are sound and have ``size`` bytes; else None.

        ``is_tail``: the first of them that have that size, as the replica's log may be longer.
        """
        parts: list[bytes] = []
        first = last = -1
        file = ""
        left = size
        try:
            for data, base, following, epoch, name in self._batches(low):
                if base > high or (is_tail and not left):
                    break
                if base < low or following - 1 > high or len(data) > left or not _is_of(epochs, base, epoch):
                    return None
                parts.append(data)
                left -= len(data)
                first, last, file = base if first < 0 else first, following - 1, file or name
        except CorruptError:
            return None
        return ReplicaBytes(b"".join(parts), first, last, file) if parts and not left else None

    def _batches(self, low: int) -> Iterator[tuple[bytes, int, int, int, str]]:
        """The batches that end at ``low`` or after it: bytes, first and next offset, epoch, file."""
        segments = list_segments(self._fs, self.path)
        for at, segment in enumerate(segments):
            if at + 1 < len(segments) and segments[at + 1].base_offset <= low:
                continue
            with closing(self._fs.open(segment.log, write=False)) as file:
                for entry, _, data in walk(file):
                    header = any_magic.describe(data, entry)
                    if header.last_offset < low:
                        continue
                    any_magic.check(data, entry)
                    batch = bytes(data[entry.position : entry.position + entry.size])
                    epoch = header.leader_epoch if entry.magic == 2 else NO_EPOCH
                    yield batch, header.base_offset, header.next_offset, epoch, segment.log


def _is_of(epochs: LeaderEpochs | None, offset: int, epoch: int) -> bool:
    """Whether our checkpoint has this epoch at the offset, or begins after it."""
    if epochs is None or not epochs.entries or epoch == NO_EPOCH or offset < epochs.entries[0].start_offset:
        return True
    return epochs.epoch_for_offset(offset) == epoch


def find_replica(fs: Fs, given: str, partition: str) -> ReplicaBatches | None:
    """The replica of the partition at ``partition`` in ``given``, a log directory, or ``given`` itself.

    None if that log directory does not have it. `InvalidLogDirError` if its topic has another id.
    """
    path = given if is_partition(fs, given) else os.path.join(given, os.path.basename(partition))
    if not fs.exists(path):
        return None
    try:
        ours, theirs = read_partition_metadata(fs, partition), read_partition_metadata(fs, path)
    except CorruptError:
        ours = theirs = None
    if ours is not None and theirs is not None and ours != theirs:
        raise InvalidLogDirError(
            f"{path} has topic id {encode_id(theirs)}, and {partition} has {encode_id(ours)}: it is no replica of it"
        )
    if os.path.realpath(path) == os.path.realpath(partition):
        raise InvalidLogDirError(f"{path} is the partition that is repaired, and no replica of it")
    return ReplicaBatches(fs, path)
