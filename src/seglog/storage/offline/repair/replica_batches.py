"""The batches of another replica, from which damaged ones are restored byte for byte.

Replicas of a partition have the same batches at the same offsets, unless each has compacted its own. A batch is taken
only if its CRC is right, its leader epoch is that of our checkpoint, and it and its neighbours fill the damaged bytes
exactly, or at the end of a file all offsets up to one that the log is known to have had. Without a checkpoint, the
sound batches on both sides, or the header that is left, must rule out a former leader.
"""

from __future__ import annotations

import os.path
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

from seglog.core.errors import CorruptError, InvalidLogDirError
from seglog.core.fs import Fs
from seglog.core.types import NO_EPOCH, Buffer
from seglog.records import any_magic
from seglog.records.batch import Entry
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


class TooMuch(NamedTuple):
    """The batches have more bytes than the donor gives at once."""

    most: int


class BatchRequest(NamedTuple):
    """Batches that are damaged: all with offsets from ``low`` to ``high``, in ``size`` bytes.

    ``is_tail``: the first of them that have that size, as the replica's log may be longer. ``until``: or all up to
    before this offset, without a gap and in at least ``size`` bytes. ``epochs`` are those of our checkpoint.
    ``header``: the first 21 bytes there, which may be damaged. ``before`` and ``after``: the leader epochs of the sound
    batches on both sides, -1 if there is none or our checkpoint contradicts it.
    """

    low: int
    high: int
    size: int
    epochs: tuple[tuple[int, int], ...] = ()
    is_tail: bool = False
    until: int | None = None
    header: bytes = b""
    before: int = NO_EPOCH
    after: int = NO_EPOCH


class BatchDonor(Protocol):
    """Another replica, or several."""

    def find(self, request: BatchRequest) -> ReplicaBytes | Disagreement | TooMuch | None: ...


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
    """The partition of a replica, at its directory ``path``. It is only read, and may be in use.

    ``most``: bytes that it gives at once.
    """

    def __init__(self, fs: Fs, path: str, most: int = sys.maxsize) -> None:
        self._most = most
        self._fs = fs
        self.path = path

    def find(self, request: BatchRequest) -> ReplicaBytes | TooMuch | None:
        """The batches of the request, if all of them are sound; otherwise None."""
        if request.size > self._most:
            return TooMuch(self._most)
        try:
            return self._up_to(request) or self._of_size(request)
        except CorruptError:
            return None

    def _up_to(self, request: BatchRequest) -> ReplicaBytes | TooMuch | None:
        if request.until is None:
            return None
        taken: list[_Batch] = []
        reached, size = request.low, 0
        for batch in self._batches(request.low):
            if batch.base != reached or batch.following > request.until or not batch.is_right(request):
                return None
            taken.append(batch)
            reached, size = batch.following, size + batch.entry.size
            if size > self._most:
                return TooMuch(self._most)
            if reached == request.until:
                break
        if not taken or reached != request.until or size < request.size:
            return None
        return _joined(request, taken, None)

    def _of_size(self, request: BatchRequest) -> ReplicaBytes | None:
        taken: list[_Batch] = []
        left = request.size
        for batch in self._batches(request.low):
            if batch.base > request.high:
                return _joined(request, taken, batch) if taken and not left else None
            fits = batch.base >= request.low and batch.following - 1 <= request.high and batch.entry.size <= left
            if not fits or not batch.is_right(request):
                return None
            taken.append(batch)
            left -= batch.entry.size
            is_whole = request.is_tail or batch.following > request.high
            if not left and is_whole and _are_epochs_known(request, taken):
                break  # the next one may be damaged
        return _joined(request, taken, None) if taken and not left else None

    def _batches(self, low: int) -> Iterator[_Batch]:
        """The batches that end at ``low`` or after it. They are not checked."""
        segments = list_segments(self._fs, self.path)
        for at, segment in enumerate(segments):
            if at + 1 < len(segments) and segments[at + 1].base_offset <= low:
                continue
            with closing(self._fs.open(segment.log, write=False)) as file:
                for entry, _, data in walk(file):
                    header = any_magic.describe(data, entry)
                    if header.last_offset >= low:
                        epoch = header.leader_epoch if entry.magic == 2 else NO_EPOCH
                        yield _Batch(data, entry, header.base_offset, header.next_offset, epoch, segment.log)


class _Batch(NamedTuple):
    data: Buffer
    entry: Entry
    base: int
    following: int
    epoch: int
    file: str

    @property
    def bytes(self) -> bytes:
        return bytes(self.data[self.entry.position : self.entry.position + self.entry.size])

    def is_right(self, request: BatchRequest) -> bool:
        """Whether the epoch is possible there. `CorruptBatchError` if the batch is damaged."""
        any_magic.check(self.data, self.entry)
        if self.epoch == NO_EPOCH:
            return True
        if _is_known(request, self.base):
            return LeaderEpochs(request.epochs).epoch_for_offset(self.base) == self.epoch
        return request.before <= self.epoch and (request.after == NO_EPOCH or self.epoch <= request.after)


def _is_known(request: BatchRequest, offset: int) -> bool:
    """Whether our checkpoint has the epoch of this offset."""
    return bool(request.epochs) and offset >= request.epochs[0][1]


def _are_epochs_known(request: BatchRequest, taken: Sequence[_Batch]) -> bool:
    """Whether only one leader can have written these batches; the files need not tell it if it was another one.

    Within an epoch, one leader has written every offset, and two logs with a batch of one epoch at one offset are the
    same before it.
    """
    if all(batch.epoch == NO_EPOCH or _is_known(request, batch.base) for batch in taken):
        return True
    if request.before == request.after != NO_EPOCH:
        return True
    return len(request.header) == CHAINED and taken[0].bytes.startswith(request.header) and len(taken) == 1


def _joined(request: BatchRequest, taken: Sequence[_Batch], following: _Batch | None) -> ReplicaBytes | None:
    """The batches, unless they may be those of a former leader."""
    is_followed = (
        following is not None
        and request.after != NO_EPOCH
        and (following.base, following.epoch) == (request.high + 1, request.after)
    )
    if not is_followed and not _are_epochs_known(request, taken):
        return None
    data = b"".join(batch.bytes for batch in taken)
    return ReplicaBytes(data, taken[0].base, taken[-1].following - 1, taken[0].file)


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
