"""The batches of another replica, from which damaged ones are restored byte for byte.

Replicas of a partition have the same batches at the same offsets, unless each has compacted its own. A batch is taken
only if its CRC is right, its leader epoch is that of our checkpoint, and it and its neighbours fill the damaged bytes
exactly, or at the end of a file all offsets up to one that the log is known to have had.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

from seglog.core.errors import CorruptError, InvalidLogDirError
from seglog.core.fs import Fs
from seglog.core.types import NO_EPOCH
from seglog.records import any_magic
from seglog.storage.formats.batch_walk import walk
from seglog.storage.formats.checkpoints import encode_id, read_partition_metadata
from seglog.storage.formats.paths import is_partition, list_segments
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.manifest import CHAINED


class ReplicaBytes(NamedTuple):
    """Whole batches of a replica; offsets from ``first`` to ``last``."""

    data: bytes
    first: int
    last: int
    file: str


class Disagreement(NamedTuple):
    """Replicas have different batches there, each of them sound, and the damaged one does not tell which is right."""

    files: tuple[str, ...]


class BatchRequest(NamedTuple):
    """Batches that are damaged: all with offsets from ``low`` to ``high``, in ``size`` bytes.

    ``is_tail``: the first of them that have that size, as the replica's log may be longer. ``until``: or all up to
    before this offset, without a gap and in at least ``size`` bytes. ``epochs`` are those of our checkpoint.
    ``header``: the first 21 bytes there, which may be damaged.
    """

    low: int
    high: int
    size: int
    epochs: tuple[tuple[int, int], ...] = ()
    is_tail: bool = False
    until: int | None = None
    header: bytes = b""


class BatchDonor(Protocol):
    """Another replica, or several."""

    def find(self, request: BatchRequest) -> ReplicaBytes | Disagreement | None: ...


def agree(request: BatchRequest, found: Sequence[ReplicaBytes]) -> ReplicaBytes | Disagreement | None:
    """The batches that all replicas have, or the only ones that continue the header that is left.

    A replica whose log is shorter may have the first of them only.
    """
    if not found:
        return None
    longest = max(found, key=lambda one: len(one.data))
    if all(longest.data.startswith(one.data) for one in found):
        return longest
    continued = [one for one in found if len(request.header) == CHAINED and one.data.startswith(request.header)]
    if len({one.data for one in continued}) == 1:
        return continued[0]
    return Disagreement(tuple(one.file for one in found))


class ReplicaBatches:
    """The partition of a replica, at its directory ``path``. It is only read, and may be in use."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self.path = path

    def find(self, request: BatchRequest) -> ReplicaBytes | None:
        """The batches of the request, if all of them are sound; otherwise None."""
        try:
            return self._up_to(request) or self._of_size(request)
        except CorruptError:
            return None

    def _up_to(self, request: BatchRequest) -> ReplicaBytes | None:
        if request.until is None:
            return None
        epochs = LeaderEpochs(request.epochs)
        parts: list[bytes] = []
        reached, file = request.low, ""
        for data, base, following, epoch, name in self._batches(request.low):
            if reached >= request.until:
                break
            if base != reached or following > request.until or not _is_of(epochs, base, epoch):
                return None
            parts.append(data)
            reached, file = following, file or name
        data = b"".join(parts)
        if not data or reached != request.until or len(data) < request.size:
            return None
        return ReplicaBytes(data, request.low, reached - 1, file)

    def _of_size(self, request: BatchRequest) -> ReplicaBytes | None:
        epochs = LeaderEpochs(request.epochs)
        parts: list[bytes] = []
        first = last = -1
        file = ""
        left = request.size
        for data, base, following, epoch, name in self._batches(request.low):
            if base > request.high or (request.is_tail and not left):
                break
            fits = base >= request.low and following - 1 <= request.high and len(data) <= left
            if not fits or not _is_of(epochs, base, epoch):
                return None
            parts.append(data)
            left -= len(data)
            first, last, file = base if first < 0 else first, following - 1, file or name
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


def _is_of(epochs: LeaderEpochs, offset: int, epoch: int) -> bool:
    """Whether our checkpoint has this epoch at the offset, or begins after it."""
    if not epochs.entries or epoch == NO_EPOCH or offset < epochs.entries[0].start_offset:
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
