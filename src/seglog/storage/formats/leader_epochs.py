"""``leader-epoch-checkpoint``: which leader epoch begins at which offset of a partition."""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from typing import NamedTuple

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, write_atomically
from seglog.core.types import MAX_INT64
from seglog.storage.formats.checkpoint_lines import decode_lines, encode_lines, number
from seglog.storage.formats.paths import LEADER_EPOCHS


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Version 0, count, then ``epoch start`` a line.

    >>> encode_epochs([(0, 0), (3, 120)])
    b'0\\n2\\n0 0\\n3 120\\n'
    """
    return encode_lines([f"{epoch} {start}" for epoch, start in entries])


def decode_epochs(data: bytes, file: str | None = None) -> list[EpochEntry]:
    """Read that text; `CorruptCheckpointError` names the file and line that are wrong."""
    entries = []
    for at, line in decode_lines(data, file):
        fields = line.split()
        if len(fields) != 2:
            raise CorruptCheckpointError(f"line {at}: {line[:80]!r} is not an epoch and an offset", file=file)
        entries.append(EpochEntry(number(fields[0], at, file), number(fields[1], at, file, MAX_INT64)))
    return entries


def read_leader_epochs(fs: Fs, partition_path: str) -> list[EpochEntry]:
    """Those of a partition; none where there is no file."""
    path = os.path.join(partition_path, LEADER_EPOCHS)
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return []
    return decode_epochs(data, path)


def write_leader_epochs(fs: Fs, partition_path: str, entries: Iterable[tuple[int, int]]) -> None:
    write_atomically(fs, os.path.join(partition_path, LEADER_EPOCHS), encode_epochs(entries))
