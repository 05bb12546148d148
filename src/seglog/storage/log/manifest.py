"""``seglog.manifest``: what the sealed segments of a partition are, so that a missing or exchanged file is noticed.

A regular file in the partition's directory, made when its first segment is sealed. Integers are big-endian::

    0   8  magic "seglogmf"
    8  entries of 40 bytes:
        0   8  baseOffset
        8   8  endOffset     after the segment's last batch
       16   8  size          bytes of the .log file
       24   4  lastCrc       the crc field of the last batch
       28   4  chain         CRC-32C over the first 21 bytes (baseOffset to crc) of all batches, one after the other
       32   4  kind          1 sealed; 0 sealed, and its chain is unknown: it was not appended here from its first
                             batch on; 2 it was active when the log was closed, and the chain goes on from there
       36   4  entryCrc      CRC-32C of bytes 0 to 35, begun with the entryCrc before (0 for the first)

A segment is appended to the manifest after it was fsynced. What makes the log shorter, or replaces segments, takes
their entries out first. So a crash leaves segments without an entry, and never an entry without its segment: a segment
without one is judged as if there was no manifest. A later entry of the same base offset replaces an earlier one. An
incomplete end is what a power cut leaves of an append, and is passed over.

A second file shows whether another program has written to the partition: the witness
``09223372036854775807.snapshot.deleted``: every Kafka, and every seglog that knows no manifest, deletes files of that
suffix whenever it loads the partition, and before it does anything else. **The manifest is believed only while the
witness is there.** Without it, all entries are forgotten and made again. The witness is created after the manifest, so
it never vouches for an old one.
"""

from __future__ import annotations

import os.path
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, NoSpaceError, write_atomically
from seglog.core.types import Buffer
from seglog.storage.formats.paths import DELETED, LOG, MANIFEST, SNAPSHOT, WITNESS, file_name

CHAINED: Final = 21
"""Bytes of a batch that its chain covers: baseOffset, batchLength, partitionLeaderEpoch, magic and crc."""
_MAGIC: Final = b"seglogmf"
ENTRY: Final = Struct(">qqqIIII")
_CRC: Final = Struct(">I")
_CRC_AT: Final = 36
_ACTIVE: Final = 2
assert ENTRY.size == _CRC_AT + _CRC.size == 40
assert f"{(1 << 63) - 1:020d}{SNAPSHOT}{DELETED}" == WITNESS

WITNESS_TEXT: Final = b"A Kafka that loads this partition deletes this file; seglog.manifest is not believed then.\n"


class SealedSegment(NamedTuple):
    """A segment that is written no more. ``chain`` is None if it is not known: see `seglog.storage.log.manifest`."""

    base_offset: int
    end_offset: int
    size: int
    last_crc: int
    chain: int | None

    @property
    def log(self) -> str:
        return file_name(self.base_offset, LOG)


def encode_entries(entries: Iterable[SealedSegment], seed: int = 0, *, active: bool = False) -> tuple[bytes, int]:
    """The entries, the first begun with ``seed``; and the seed for what follows."""
    data = bytearray()
    for base, end, size, last_crc, chain in entries:
        kind = _ACTIVE if active else int(chain is not None)
        fields = ENTRY.pack(base, end, size, last_crc, chain or 0, kind, 0)[:_CRC_AT]
        seed = crc32c(fields, seed)
        data += fields + _CRC.pack(seed)
    return bytes(data), seed


def encode_manifest(entries: Iterable[SealedSegment]) -> bytes:
    """
    >>> len(encode_manifest([Sealed(0, 11, 1870, 1, None)]))
    48
    """
    return _MAGIC + encode_entries(entries)[0]


class ManifestContent(NamedTuple):
    """``size``: bytes up to the end of the last whole entry; ``seed``: to go on there."""

    entries: Mapping[int, SealedSegment]
    active: SealedSegment | None
    size: int
    seed: int


def decode_manifest(data: bytes, file: str | None = None) -> ManifestContent:
    """`CorruptCheckpointError` if an entry is wrong and a later one is right: an incomplete append is the last one."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise CorruptCheckpointError("it does not begin with seglogmf", position=0, file=file)
    found: dict[int, SealedSegment] = {}
    active: SealedSegment | None = None
    position, seeds, wrong = len(_MAGIC), {0}, -1
    good, good_seed = position, 0
    while position + ENTRY.size <= len(data):
        base, end, size, last_crc, chain, kind, stored = ENTRY.unpack_from(data, position)
        computed = {crc32c(data[position : position + _CRC_AT], seed) for seed in seeds}
        if stored not in computed:
            wrong = position if wrong < 0 else wrong
        elif wrong >= 0:
            raise CorruptCheckpointError("the entry's CRC is wrong", position=wrong, file=file)
        else:
            entry = SealedSegment(base, end, size, last_crc, chain if kind else None)
            if kind == _ACTIVE:
                active = entry
            else:
                found[base] = entry
            good, good_seed = position + ENTRY.size, stored
        position, seeds = position + ENTRY.size, computed | {stored}
    return ManifestContent(found, active, good, good_seed)


def is_believed(fs: Fs, path: str) -> bool:
    """Whether the partition at ``path`` has a manifest and nothing but us has loaded it since."""
    return fs.exists(os.path.join(path, WITNESS)) and fs.exists(os.path.join(path, MANIFEST))


def read_manifest(fs: Fs, path: str) -> Mapping[int, SealedSegment]:
    """The entries by base offset; none if they are not to be believed. `CorruptCheckpointError`."""
    if not is_believed(fs, path):
        return {}
    file = os.path.join(path, MANIFEST)
    return decode_manifest(fs.read(file), file).entries


class Difference(NamedTuple):
    """A segment that differs from its manifest ``entry``."""

    file: str
    entry: SealedSegment
    reason: str

    @property
    def lost(self) -> str:
        return f"offsets {self.entry.base_offset} to {self.entry.end_offset - 1}"

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}; by {MANIFEST} it holds {self.lost} in {self.entry.size} bytes"


def differences(fs: Fs, path: str, entries: Mapping[int, SealedSegment], *, log_start: int = 0) -> Iterator[Difference]:
    """Of the ``.log`` files of a partition, missing ones and those of another size, from ``log_start`` on."""
    for entry in entries.values():
        if entry.end_offset > log_start:
            try:
                size: int | None = fs.stat(os.path.join(path, entry.log)).size
            except FileNotFoundError:
                size = None
            found = difference(path, entry, size)
            if found is not None:
                yield found


def difference(path: str, entry: SealedSegment, size: int | None) -> Difference | None:
    """How a ``.log`` file of ``size`` bytes, None: there is none, differs from its entry."""
    if size == entry.size:
        return None
    reason = "the file is missing" if size is None else f"the file has {size} bytes"
    return Difference(os.path.join(path, entry.log), entry, reason)


def exchanged(path: str, entry: SealedSegment, end_offset: int, last_crc: int) -> Difference | None:
    """How what a segment ends with differs from its entry, if it does."""
    if (end_offset, last_crc) == (entry.end_offset, entry.last_crc):
        return None
    reason = f"its last batch ends before offset {end_offset} and has CRC {last_crc}, not {entry.last_crc}"
    return Difference(os.path.join(path, entry.log), entry, f"it is another file: {reason}")


def discard(fs: Fs, path: str) -> None:
    """Forget the manifest of the partition at ``path``, and for good before anything else is changed there."""
    for name in (WITNESS, MANIFEST):
        if fs.exists(os.path.join(path, name)):
            fs.unlink(os.path.join(path, name))
            fs.fsync_dir(path)


class Manifest:
    """The manifest of an open partition. Its lock is the last that is taken: a log's may be held."""

    def __init__(self, fs: Fs, path: str, on_disk: ManifestContent | None = None) -> None:
        """``on_disk``: the believed manifest; without, the file is written again with the first entry."""
        self._fs = fs
        self._path = path  # guarded by _lock
        self._lock = threading.Lock()
        # The table is replaced whole: a reader takes it without the lock.
        self._entries: Mapping[int, SealedSegment] = on_disk.entries if on_disk else {}  # guarded by _lock
        self._end = None if on_disk is None else (on_disk.size, on_disk.seed)  # guarded by _lock
        self.active = None if on_disk is None else on_disk.active

    @classmethod
    def open(cls, fs: Fs, path: str) -> Manifest:
        """Of the partition at ``path``. `CorruptCheckpointError`."""
        if not is_believed(fs, path):
            return cls(fs, path)
        file = os.path.join(path, MANIFEST)
        return cls(fs, path, decode_manifest(fs.read(file), file))

    @property
    def entries(self) -> Mapping[int, SealedSegment]:
        return self._entries

    @property
    def flushed(self) -> int:
        """All below was flushed when it was sealed; 0 without entries."""
        return max((entry.end_offset for entry in self._entries.values()), default=0)

    def add(
        self, entries: Iterable[SealedSegment], is_current: Callable[[SealedSegment], bool] = lambda _entry: True
    ) -> None:
        """Write down segments that were fsynced, but for those no longer current; durable when this returns."""
        with self._lock:
            added = [entry for entry in entries if is_current(entry)]
            if not added:
                return
            if self._end is None:
                self._rewrite({**self._entries, **{entry.base_offset: entry for entry in added}})
                write_atomically(self._fs, os.path.join(self._path, WITNESS), WITNESS_TEXT)
            else:
                self._append(added)
                self._entries = {**self._entries, **{entry.base_offset: entry for entry in added}}

    def close(self, active: SealedSegment) -> None:
        """Keep the chain of the ``active`` segment for the next start, if it has batches and there is a manifest."""
        with self._lock:
            if self._end is not None and active.size and active.chain is not None and active != self.active:
                self._append([active], active=True)

    def forget(self, bases: Iterable[int]) -> None:
        """Take segments out, before their files go or change; durable when this returns."""
        with self._lock:
            gone = set(bases)
            if gone & self._entries.keys():
                try:
                    self._rewrite({base: entry for base, entry in self._entries.items() if base not in gone})
                except NoSpaceError:  # what takes files away must not need room: the manifest is made again later
                    discard(self._fs, self._path)
                    self._entries, self._end = {}, None

    def forget_from(self, base_offset: int) -> None:
        """Take the segment of ``base_offset`` out and all after it."""
        self.forget([base for base in self._entries if base >= base_offset])

    def moved_to(self, path: str) -> None:
        with self._lock:
            self._path = path

    def _append(self, added: Sequence[SealedSegment], *, active: bool = False) -> None:
        assert self._end is not None
        position, seed = self._end
        data, seed = encode_entries(added, seed, active=active)
        file = self._fs.open(os.path.join(self._path, MANIFEST))
        try:
            file.truncate(position)  # what a power cut has left of an append would look like damage after this one
            file.pwrite(data, position)
            file.fsync()
        finally:
            file.close()
        self._end = (position + len(data), seed)

    def _rewrite(self, entries: Mapping[int, SealedSegment]) -> None:
        data, seed = encode_entries(entries[base] for base in sorted(entries))
        written: Buffer = _MAGIC + data
        write_atomically(self._fs, os.path.join(self._path, MANIFEST), written)
        self._entries = entries
        self._end = (len(written), seed)
