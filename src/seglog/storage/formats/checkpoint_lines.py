"""The text format of Kafka's checkpoint files (``CheckpointFile.java``): UTF-8, every line ends in a newline.

::

    0        <- version
    <n>      <- number of lines that follow
    ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from seglog.core.errors import CorruptCheckpointError
from seglog.core.types import MAX_INT32

VERSION: Final = 0
_NUMBER: Final = re.compile("[0-9]{1,19}")


def encode_lines(lines: Sequence[str]) -> bytes:
    return "".join([f"{VERSION}\n{len(lines)}\n", *(f"{line}\n" for line in lines)]).encode()


def decode_lines(data: bytes, file: str | None = None) -> Iterator[tuple[int, str]]:
    """The lines after the count, each with its number in the file (the version is line 1).

    No bytes at all, or a version alone, mean no lines: Kafka creates these files before it first writes them. Anything
    that Kafka would not read is a `CorruptCheckpointError` that names file and line.
    """
    try:
        lines = re.split("\r\n|\r|\n", data.decode())
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError("not UTF-8", position=error.start, file=file) from error
    if not lines[-1]:
        lines.pop()
    if not lines:
        return
    version = number(lines[0], 1, file)
    if version != VERSION:
        raise CorruptCheckpointError(f"line 1: version {version} is unknown, {VERSION} is expected", file=file)
    if len(lines) == 1:
        return
    announced, found = number(lines[1], 2, file), len(lines) - 2
    if announced != found:
        raise CorruptCheckpointError(f"line 2: {announced} entries are announced, {found} are there", file=file)
    yield from enumerate(lines[2:], start=3)


def number(text: str, line: int, file: str | None, limit: int = MAX_INT32) -> int:
    """A whole number from 0 to ``limit`` as it stands in ``line``."""
    if not _NUMBER.fullmatch(text) or int(text) > limit:
        raise CorruptCheckpointError(f"line {line}: {text[:80]!r} is not a number from 0 to {limit}", file=file)
    return int(text)
