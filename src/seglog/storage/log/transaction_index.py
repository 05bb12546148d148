"""``.txnindex``: the aborted transactions whose markers lie in a segment (``TransactionIndex.java``).

34 bytes an entry, big-endian, in order of ``lastOffset``; the file exists only where there is one::

    version int16 (0) | producerId int64 | firstOffset int64 | lastOffset int64 | lastStableOffset int64
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import CorruptIndexError
from seglog.core.fs import Fs
from seglog.core.types import Buffer
from seglog.storage.log.segment_files import DerivedFile

ENTRY: Final = Struct(">hqqqq")
assert ENTRY.size == 34


class AbortedTxn(NamedTuple):
    """An aborted transaction: of whom, from its first record to its ABORT marker, and the last stable offset then."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(txn: AbortedTxn) -> bytes:
    return ENTRY.pack(0, *txn)


def decode_aborted(data: Buffer, file: str | None = None, *, base_offset: int = 0) -> list[AbortedTxn]:
    """All entries of a file's bytes; `CorruptIndexError` on a wrong size, version or order."""
    if len(data) % ENTRY.size:
        raise CorruptIndexError(
            f"size {len(data)} is not a multiple of {ENTRY.size}", position=len(data) // 34 * 34, file=file
        )
    found: list[AbortedTxn] = []
    for slot, (version, *fields) in enumerate(ENTRY.iter_unpack(data)):
        txn = AbortedTxn(*fields)
        reason = None
        if version != 0:
            reason = f"unknown version {version}"
        elif txn.last_offset < base_offset or txn.first_offset > txn.last_offset:
            reason = f"transaction from {txn.first_offset} to {txn.last_offset} in a segment from {base_offset}"
        elif found and txn.last_offset <= found[-1].last_offset:
            reason = f"last offset {txn.last_offset} is not above the {found[-1].last_offset} before it"
        if reason:
            raise CorruptIndexError(reason, position=slot * ENTRY.size, file=file)
        found.append(txn)
    return found


class TxnIndex:
    """The file and its entries in memory; there are few. One writer; readers take a slice of an append-only list."""

    __slots__ = ("_file", "_fs", "base_offset", "entries")

    def __init__(self, fs: Fs, path: str, base_offset: int, *, is_new: bool = False) -> None:
        """``is_new``: there is no such file."""
        self._fs = fs
        self.base_offset = base_offset
        data = fs.read(path) if not is_new and fs.exists(path) else b""
        self.entries = decode_aborted(data, path, base_offset=base_offset)
        self._file = DerivedFile(fs, path, len(data), len(data), write_at=1)

    @property
    def path(self) -> str:
        return self._file.path

    def append(self, txn: AbortedTxn) -> None:
        if self.entries and txn.last_offset <= self.entries[-1].last_offset:
            raise CorruptIndexError(
                f"aborted transaction up to {txn.last_offset} would follow one up to {self.entries[-1].last_offset}",
                file=self.path,
            )
        self._file.append(encode_aborted(txn))
        self.entries.append(txn)

    def collect(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """Transactions that overlap ``start`` to ``end`` (exclusive), and whether no later segment can have one.

        A last stable offset past the marker of its own transaction is wrong: followers of Kafka write such ones, and
        earlier releases of seglog did (`Producers.last_stable_offset`).
        """
        found = []
        for txn in self.entries:
            if txn.last_offset >= start and txn.first_offset < end:
                found.append(txn)
            if min(txn.last_stable_offset, txn.last_offset + 1) >= end:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drop the transactions whose marker is at or above ``offset``."""
        kept = [txn for txn in self.entries if txn.last_offset < offset]
        if len(kept) < len(self.entries):
            self._file.truncate(len(kept) * ENTRY.size)
            self.entries = kept

    def reset(self) -> None:
        """Forget everything, also a file that could not be read."""
        self._file.truncate(0)
        self.entries = []

    def write(self) -> None:
        """Write what a full disk has not taken. `NoSpaceError`."""
        self._file.write()

    def flush(self) -> None:
        self._file.flush()

    def rename(self, path: str) -> None:
        self._file.rename(path)

    def moved_to(self, path: str) -> None:
        self._file.moved_to(path)

    def unlink(self) -> None:
        self._file.unlink()
