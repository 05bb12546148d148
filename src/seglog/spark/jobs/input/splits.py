"""Files divided into splits, one for each task: byte ranges of text, row groups of Parquet; and how to read them.

A line belongs to the range in which it begins. A compressed file is one split, and so is a CSV file whose quoted values
may span lines.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from glob import glob
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.fs import Fs
from seglog.records.intrinsics import I64

BLOCK: Final = 4 << 20
"""Bytes of text that are parsed at a time."""
_HEAD: Final = 1 << 16
_NEWLINE: Final = 10
_RETURN: Final = 13
_WILD: Final = frozenset("*?[")
_CODECS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


class BadFileError(SeglogError):
    """The content of a file does not match its name."""


class Split(NamedTuple):
    """A task's part of a file: bytes from ``start`` to before ``end``, or the row groups ``groups``.

    ``names`` are the columns that the header of a CSV file names.
    """

    path: str
    start: int
    end: int
    groups: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


class LineBlock(NamedTuple):
    """Whole lines. ``starts`` has the position of each in ``data`` and one more; ``ends`` excludes the line ends.

    ``first`` is the number of the first line.
    """

    data: bytes
    starts: I64
    ends: I64
    first: int

    def slice(self, low: int, high: int) -> bytes:
        return self.data[int(self.starts[low]) : int(self.starts[high])]


def list_files(fs: Fs, paths: Sequence[str]) -> list[str]:
    """The files of ``paths``: files, globs, directories. Skips files in directories that begin with ``.`` or ``_``.

    They are in the order of ``paths``, and by name within each. This is the order of the records.
    """
    found: list[str] = []
    for path in paths:
        absolute = os.path.abspath(path)
        if not fs.exists(absolute) and not _WILD & set(absolute):
            raise FileNotFoundError(2, "No such file or directory", path)
        matches = [absolute] if fs.exists(absolute) else sorted(glob(absolute), key=lambda name: name.split(os.sep))
        for match in matches:
            if fs.stat(os.path.realpath(match)).is_dir:
                names = sorted(name for name in fs.listdir(match) if not name.startswith((".", "_")))
                files = [os.path.join(match, name) for name in names]
                found += [file for file in files if not fs.stat(os.path.realpath(file)).is_dir]
            else:
                found.append(match)
    if not found:
        raise InvalidConfigError(f"{', '.join(paths)}: no such file")
    return found


def split_text(
    fs: Fs, paths: Sequence[str], share: int, *, whole: bool, ranges: Mapping[str, tuple[int, int]] | None = None
) -> list[Split]:
    """Ranges of about ``share`` bytes of each file, or of its part in ``ranges``; one range each if ``whole``."""
    splits = []
    for path in paths:
        low, high = (ranges or {}).get(path) or (0, fs.stat(os.path.realpath(path)).size)
        size = high - low
        parts = 1 if whole or _codec(path) else max(-(-size // share), 1)
        bounds = [low + size * part // parts for part in range(parts + 1)]
        splits += [Split(path, low, high) for low, high in pairwise(bounds)]
    return splits


def split_parquet(paths: Sequence[str], share: int) -> list[Split]:
    """Neighbouring row groups of about ``share`` bytes."""
    splits = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
            held: list[int] = []
            start = end = 0
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                size = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
                if held and end - start + size > share:
                    splits.append(Split(path, start, end, tuple(held)))
                    held, start = [], end
                held.append(number)
                end += size
            if held:
                splits.append(Split(path, start, end, tuple(held)))
    return splits


def read_lines(split: Split, *, skip: int = 0) -> Iterator[LineBlock]:
    """The lines of a range, numbered from 1 within it; without the first ``skip`` lines of a file, which count."""
    with open_stream(split.path) as stream:
        left = 1 << 62 if _codec(split.path) else split.end
        if split.start:
            stream.seek(split.start - 1)
            left -= split.start - 1
        number, tail, first = 1, b"", bool(split.start)
        while True:
            data = stream.read(BLOCK)
            block = tail + data
            if first and block:  # the line in which the range begins belongs to the range before
                cut = block.find(b"\n") + 1
                if not cut and data and len(block) < left:
                    tail = block
                    continue
                block, left, first = block[cut:] if cut else b"", left - (cut or len(block)), False
            if not block or left <= 0:
                return
            end = _last_line(block, left, at_end=not data)
            if end == 0:
                tail = block
                continue
            lines = _lines(block[:end], number)
            passed = min(max(skip + 1 - number, 0), len(lines.ends)) if not split.start else 0
            number += len(lines.ends)
            if passed < len(lines.ends):
                yield LineBlock(lines.data, lines.starts[passed:], lines.ends[passed:], lines.first + passed)
            left -= end
            tail = block[end:]


def _last_line(block: bytes, left: int, *, at_end: bool) -> int:
    """The end in ``block`` of the last whole line that begins before ``left``; 0 if more data must be read first."""
    if len(block) >= left:
        found = block.find(b"\n", left - 1) + 1
        if found:
            return found
    if at_end:
        return len(block)
    return min(block.rfind(b"\n") + 1, len(block))


def _lines(data: bytes, number: int) -> LineBlock:
    array = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(array == _NEWLINE)
    ends = newlines if data.endswith(b"\n") else np.append(newlines, len(data))
    starts = np.concatenate(([0], newlines + 1)) if data.endswith(b"\n") else np.concatenate(
        ([0], newlines + 1, [len(data)])
    )  # fmt: skip
    has_return = (ends > starts[:-1]) & (array[np.maximum(ends - 1, 0)] == _RETURN)
    return LineBlock(data, starts.astype(np.int64), (ends - has_return).astype(np.int64), number)


def count_lines(fs: Fs, path: str, end: int) -> int:
    """The number of lines that begin before the range that starts at ``end``: an offset for that range's numbers."""
    if not end:
        return 0
    with closing(fs.open(path, write=False)) as file:
        position = count = 0
        while position < end - 1 and (data := file.pread(min(BLOCK, end - 1 - position), position)):
            count += data.count(b"\n")
            position += len(data)
        return count + 1


def sample(path: str) -> bytes:
    """Whole lines from the beginning of a file, about `BLOCK` bytes."""
    return next((lines.data for lines in read_lines(Split(path, 0, BLOCK))), b"")


def first_line(path: str) -> bytes:
    """The first line without its line end; empty if the file is."""
    head = b""
    with open_stream(path) as stream:
        while b"\n" not in head and (data := stream.read(_HEAD)):
            head += data
    return head.split(b"\n", 1)[0].removesuffix(b"\r")


@contextmanager
def open_stream(path: str) -> Iterator[Any]:
    """A file as pyarrow reads it, decompressed by its ending; `BadFileError` if compressed data is damaged."""
    codec = _codec(path)
    with pa.OSFile(path) as file:
        if codec is None:
            yield file
            return
        try:
            with pa.CompressedInputStream(file, codec) as stream:
                yield stream
        except OSError as error:
            raise BadFileError(f"{path}: the {codec} data is damaged or incomplete: {error}") from error


def read_row_groups(split: Split, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(split.path) as file:
        yield from file.iter_batches(65536, row_groups=list(split.groups), columns=columns, use_threads=False)


def _codec(path: str) -> str | None:
    return _CODECS.get(os.path.splitext(path)[1].lower())
