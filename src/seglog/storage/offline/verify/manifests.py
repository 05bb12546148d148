"""Compares sealed segments with the partition's manifest (`seglog.storage.log.manifest`)."""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from typing import Final

from crc32c import crc32c

from seglog.core.errors import CorruptCheckpointError, CorruptError
from seglog.core.fs import File, Fs, NotRegularFileError
from seglog.records import any_magic
from seglog.storage.formats.batch_walk import windows
from seglog.storage.formats.paths import MANIFEST, WITNESS, SegmentPaths
from seglog.storage.log.manifest import CHAINED, WITNESS_TEXT, SealedSegment, decode_manifest, difference, exchanged
from seglog.storage.offline.batch_reading import read_chunks
from seglog.storage.offline.findings import Finding, damage
from seglog.storage.offline.verify.index_entries import NO_ENTRIES, IndexEntries

_WINDOW: Final = 256 << 10


def read_sealed(
    fs: Fs, path: str, names: Collection[str], findings: list[Finding], *, clean: bool
) -> Mapping[int, SealedSegment]:
    """The entries of a partition's manifest, none if it is missing or damaged; ``names`` are the partition's files.

    ``clean``: the log directory was closed, so the manifest cannot end in a torn entry.
    """
    if WITNESS not in names or MANIFEST not in names:
        return {}
    witness, file = os.path.join(path, WITNESS), os.path.join(path, MANIFEST)
    try:
        if fs.read(witness) != WITNESS_TEXT:
            findings.append(damage(witness, "the text is not as seglog writes it"))
        data = fs.read(file)
        decoded = decode_manifest(data, file)
    except (FileNotFoundError, NotRegularFileError):
        return {}
    except CorruptCheckpointError as error:
        findings.append(damage(file, error.reason, position=error.position))
        return {}
    if clean and decoded.size != len(data):
        findings.append(damage(file, "its last entry is wrong or incomplete", position=decoded.size))
    return decoded.entries


def missing(
    path: str, entries: Mapping[int, SealedSegment], bases: Collection[int], log_start: int
) -> Iterator[Finding]:
    """Segments of the manifest without a file, except those whose records were all deleted."""
    for entry in entries.values():
        found = difference(path, entry, None)
        if entry.base_offset not in bases and entry.end_offset > log_start and found is not None:
            yield damage(found.file, str(found).removeprefix(f"{found.file}: "), offset=entry.base_offset)


def sealed_findings(
    fs: Fs, paths: SegmentPaths, size: int, entry: SealedSegment, index: IndexEntries
) -> Iterator[Finding]:
    """Compare a segment of ``size`` bytes with its entry: its size, and the end of its log."""
    path = os.path.dirname(paths.log)
    found = difference(path, entry, size)
    if found is None:
        for known in (index, NO_ENTRIES):  # the index may be wrong
            end = tail_of(fs, paths, known)
            found = exchanged(path, entry, *end) if end is not None else None
            if end is not None and found is None:
                break
    if found is not None:
        yield damage(found.file, str(found).removeprefix(f"{found.file}: "))


def chain_findings(fs: Fs, paths: SegmentPaths, entry: SealedSegment) -> Iterator[Finding]:
    """Compare the headers of all batches of a segment with the chain of its entry."""
    if entry.chain is None:
        return
    with closing(fs.open(paths.log, write=False)) as file:
        if chain_of(file) != entry.chain:
            yield damage(paths.log, f"by {MANIFEST}, the headers of its batches are not those that were written")


def tail_of(fs: Fs, paths: SegmentPaths, index: IndexEntries) -> tuple[int, int] | None:
    """The offset behind the last batch of a log and that batch's CRC; None if it cannot be read."""
    file = fs.open(paths.log, write=False)
    found = (paths.base_offset, 0)
    try:
        for chunk in read_chunks(file, index.positions[-1] if index.positions else 0):
            for entry in chunk.entries:
                last = entry
            header = any_magic.describe(chunk.data, last, deep=False)
            found = header.next_offset, header.crc
    except CorruptError:
        return None
    finally:
        file.close()
    return found


def chain_of(file: File) -> int:
    """The chain over a log's batches, by their sizes alone: see `seglog.storage.log.manifest`."""
    chain = 0
    with suppress(CorruptError):
        for found, _, data in windows(file, window=_WINDOW, whole=False):
            for at, _, _, _ in found:
                chain = crc32c(data[at : at + CHAINED], chain)
    return chain
