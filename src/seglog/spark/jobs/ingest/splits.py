"""Files cut into what tasks read: byte ranges of text between lines, row groups of Parquet; and the reading of them.

A line belongs to the range in which it begins. Compressed text cannot be cut, and neither can CSV whose quoted values
go over several lines: such a file is one task's.
"""

from __future__ import annotations

import io
import os.path
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.fs import File, Fs
from seglog.records.machine import I64
from seglog.spark.read.directories.partitions import expand

BLOCK: Final = 4 << 20
"""Bytes of text that are parsed at a time."""
_HEAD: Final = 1 << 16
_NEWLINE: Final = 10
_RETURN: Final = 13
_COMPRESSED: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


class BadFileError(SeglogError):
    """A file that cannot be read as what its name says."""


class Split(NamedTuple):
    """What one task reads of a file: bytes from ``start`` to before ``end``, or the row groups ``groups``.

    ``names`` are the columns of a file of CSV, as its own header has them.
    """

    path: str
    start: int
    end: int
    groups: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.end - self.start


class LineBlock(NamedTuple):
    """Whole lines: ``starts`` of each in ``data`` and one more, ``ends`` without the line's end; the first's number."""

    data: bytes
    starts: I64
    ends: I64
    first: int

    def slice(self, low: int, high: int) -> bytes:
        return self.data[int(self.starts[low]) : int(self.starts[high])]


def list_files(fs: Fs, paths: Sequence[str]) -> list[str]:
    """Files by paths or globs, and all files of directories (hidden ones and those with ``_`` left out), in order.

    The order is that of ``paths``, within each by name: it is the order of the records.
    """
    found: list[str] = []
    for path in paths:
        for match in _expand(fs, path):
            if fs.stat(os.path.realpath(match)).is_dir:
                names = sorted(name for name in fs.listdir(match) if not name.startswith((".", "_")))
                files = [os.path.join(match, name) for name in names]
                found += [file for file in files if not fs.stat(os.path.realpath(file)).is_dir]
            else:
                found.append(match)
    if not found:
        raise InvalidConfigError(f"{', '.join(paths)}: no such file")
    return found


def _expand(fs: Fs, path: str) -> list[str]:
    directory, name = os.path.split(os.path.abspath(path))
    if set(name) & set("*?[") and not fs.exists(path):
        from fnmatch import fnmatchcase

        return [
            os.path.join(parent, one)
            for parent in expand(fs, directory)
            for one in sorted(fs.listdir(parent))
            if fnmatchcase(one, name) and not one.startswith(".")
        ]
    if not fs.exists(os.path.abspath(path)):
        raise FileNotFoundError(2, "No such file or directory", path)
    return [os.path.abspath(path)]


def split_text(
    fs: Fs, paths: Sequence[str], share: int, *, whole: bool, ranges: Mapping[str, tuple[int, int]] | None = None
) -> list[Split]:
    """Ranges of about ``share`` bytes, of files or of their ``ranges``, which are of whole lines; no range is cut if
    ``whole``."""
    splits = []
    for path in paths:
        low, high = (ranges or {}).get(path) or (0, fs.stat(os.path.realpath(path)).size)
        size = high - low
        parts = 1 if whole or _codec(path) else max(-(-size // share), 1)
        bounds = [low + size * part // parts for part in range(parts + 1)]
        splits += [Split(path, low, high) for low, high in pairwise(bounds)]
    return splits


def split_parquet(fs: Fs, paths: Sequence[str], share: int) -> list[Split]:
    """Neighbouring row groups of about ``share`` bytes in the file."""
    splits = []
    for path in paths:
        with closing(_Raw(fs.open(path, write=False))) as raw:
            metadata = open_parquet(raw).metadata
            held: list[int] = []
            start = end = 0
            for group in range(metadata.num_row_groups):
                size = sum(
                    metadata.row_group(group).column(column).total_compressed_size
                    for column in range(metadata.num_columns)
                )
                if held and end - start + size > share:
                    splits.append(Split(path, start, end, tuple(held)))
                    held, start = [], end
                held.append(group)
                end += size
            if held:
                splits.append(Split(path, start, end, tuple(held)))
    return splits


def read_lines(fs: Fs, split: Split, *, skip: int = 0) -> Iterator[LineBlock]:
    """The lines of a range; numbers count from 1 in the range, which ``skip`` lines at a file's start are part of."""
    with closing(_Raw(fs.open(split.path, write=False))) as raw:
        codec = _codec(split.path)
        stream = _Decompressed(raw, codec, split.path) if codec else raw
        left = 1 << 62 if codec else split.end
        if split.start:
            raw.seek(split.start - 1)
            left -= split.start - 1
        number, tail, first = 1, b"", bool(split.start)
        while True:
            data = stream.read(BLOCK)
            block = tail + data
            if first and block:  # the line in which the range begins is the one's before
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
    """Where the last whole line that begins before ``left`` ends in ``block``; 0 if that is not known yet."""
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
    """Lines that begin before the range that starts at ``end`` does: what its numbers count from."""
    if not end:
        return 0
    with closing(fs.open(path, write=False)) as file:
        position = count = 0
        while position < end - 1:
            data = file.pread(min(BLOCK, end - 1 - position), position)
            count += data.count(b"\n")
            position += len(data)
            if not data:
                break
        return count + 1


def sample(fs: Fs, path: str) -> bytes:
    """Whole lines at the beginning of a file, about a block of them."""
    for lines in read_lines(fs, Split(path, 0, BLOCK)):
        return lines.data
    return b""


def first_line(fs: Fs, path: str) -> bytes:
    """Without its end; empty if there is none."""
    head = b""
    with closing(open_stream(fs, path)) as stream:
        while b"\n" not in head and (data := stream.read(_HEAD)):
            head += data
    return head.split(b"\n", 1)[0].removesuffix(b"\r")


def open_stream(fs: Fs, path: str) -> io.RawIOBase:
    """A whole file, decompressed, to be read by a library of Python's; to be closed."""
    raw, codec = _Raw(fs.open(path, write=False)), _codec(path)
    return _Decompressed(raw, codec, path) if codec else raw


def open_parquet(raw: io.RawIOBase) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(raw)


def read_row_groups(fs: Fs, split: Split, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    with closing(_Raw(fs.open(split.path, write=False))) as raw:
        file = open_parquet(raw)
        yield from file.iter_batches(65536, row_groups=list(split.groups), columns=columns, use_threads=False)


def parquet_schema(fs: Fs, path: str) -> pa.Schema:
    with closing(_Raw(fs.open(path, write=False))) as raw:
        schema: pa.Schema = open_parquet(raw).schema_arrow
        return schema


def _codec(path: str) -> str | None:
    return _COMPRESSED.get(os.path.splitext(path)[1].lower())


class _Raw(io.RawIOBase):
    """A file of ours as Python's libraries want it; reading only."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self._file = file
        self._size = file.size()
        self._at = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.pread(self._size - self._at if size < 0 else size, self._at)
        self._at += len(data)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _Decompressed(io.RawIOBase):
    """What a compressed file holds; an error names the file."""

    def __init__(self, raw: _Raw, codec: str, path: str) -> None:
        super().__init__()
        self._raw = raw
        self._stream: Any = pa.CompressedInputStream(pa.PythonFile(raw, "r"), codec)
        self._codec = codec
        self._path = path

    def read(self, size: int = -1, /) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except OSError as error:
            raise BadFileError(f"{self._path}: the {self._codec} data is damaged or incomplete: {error}") from error
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()
