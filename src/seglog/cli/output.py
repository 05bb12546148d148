"""The output of the commands: tables on a terminal, JSON for programs, else plain lines."""

from __future__ import annotations

import json
import os
import re
import sys
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import BinaryIO, Final, Self

FINE: Final = 0
DAMAGE: Final = 1
"""Exit code if a command finds damage."""
FAILED: Final = 2
"""Exit code for a wrong command line and for files that cannot be read."""

_FLUSH_CHARACTERS: Final = 1 << 20
_NARROWEST: Final = 12
"""Minimum width of a column of text."""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_GAP: Final = 2
"""Spaces between two columns, as in a table of rich without a box."""


class Out:
    """Text for stdout, in UTF-8 whatever the locale is, written a megabyte at a time and flushed at the end.

    A file name that is not UTF-8 is written unchanged; in JSON a byte NN of it is ``\\udcNN``, which Python reads back.
    """

    __slots__ = ("_parts", "_size", "_stream")

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = sys.stdout.buffer if stream is None else stream
        self._parts: list[str] = []
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def write(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        if self._size >= _FLUSH_CHARACTERS:
            self._drain()

    def line(self, text: str) -> None:
        self.write(text + "\n")

    def json(self, value: object) -> None:
        """One compact JSON document on a line of its own."""
        self.line(json_text(value))

    def raw(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes that are UTF-8 already."""
        self._drain()
        self._stream.write(data)

    def _drain(self) -> None:
        if self._parts:
            self._stream.write("".join(self._parts).encode(errors="surrogateescape"))
            self._parts.clear()
            self._size = 0

    def flush(self) -> None:
        self._drain()
        self._stream.flush()


def json_text(value: object) -> str:
    """A compact JSON document. A name that is not UTF-8 has lone surrogates; those are escapes.

    >>> json_text({"name": "\\udcff", "size": 1})
    '{"name":"\\\\udcff","size":1}'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def warn(text: str) -> None:
    """Print a line on stderr; do nothing if stderr is closed (`2>&-`)."""
    if sys.stderr is not None:
        print(text, file=sys.stderr)


def fail(reason: object) -> int:
    """Print in one line why the command failed; return the exit code."""
    warn(f"seglog: {reason}")
    return FAILED


def describe_os_error(error: OSError) -> str:
    """The text of an OSError, without its number.

    >>> describe_os_error(FileNotFoundError(2, "No such file or directory", "x.log"))
    'x.log: No such file or directory'
    """
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename is not None else reason


def show_table(
    out: Out, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """Print a table: by rich on a terminal, else as aligned columns. ``right``: the columns of numbers."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if is_terminal():
        from rich.console import Console
        from rich.table import Table

        console = Console(highlight=False, markup=False)
        widths = fit_widths(columns, cells, right, console.width)
        if widths is None:
            _show_pairs(out, columns, cells, console.width)
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column, width in zip(columns, widths, strict=True):
            table.add_column(
                column, justify="right" if column in right else "left", width=width, overflow="fold", no_wrap=False
            )
        for row in cells:
            table.add_row(*row)
        with console.capture() as drawn:
            console.print(table)
        out.write(drawn.get())
        return
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    for row in [list(columns), *cells]:
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        out.line("  ".join(padded).rstrip())


def fit_widths(
    columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[str], total: int
) -> list[int] | None:
    """The width of each column in a terminal of ``total`` characters. The widest column of text shrinks first, down to
    `_NARROWEST`, and its cells wrap; numbers and times never wrap. None if the table does not fit.

    >>> fit_widths(("topic", "offset", "member"), [("a" * 30, "7", "b" * 50)], ("offset",), 60)
    [25, 6, 25]
    >>> fit_widths(("topic", "offset", "member"), [("a" * 30, "7", "b" * 50)], ("offset",), 30) is None
    True
    """
    widths = [max(len(row[at]) for row in [list(columns), *cells]) for at in range(len(columns))]
    texts = [
        at
        for at, column in enumerate(columns)
        if column not in right and not any(_TIME.fullmatch(row[at]) for row in cells)
    ]
    over = sum(widths) + _GAP * (len(widths) - 1) - total
    while over > 0:
        at = max(texts, key=lambda at: widths[at], default=None)
        if at is None or widths[at] <= max(_NARROWEST, len(columns[at])):
            return None
        widths[at] -= 1
        over -= 1
    return widths


def _show_pairs(out: Out, columns: Sequence[str], cells: Sequence[Sequence[str]], total: int) -> None:
    """Print rows that do not fit in a table: the first cell, then pairs of column and cell, on as many lines as needed.
    No cell is cut."""
    for row in cells:
        line = row[0]
        for column, cell in zip(columns[1:], row[1:], strict=True):
            pair = f"{column} {cell}"
            if len(line) + _GAP + len(pair) > total and line.strip():
                out.line(line)
                line = " " * _GAP + pair
            else:
                line += " " * _GAP + pair
        out.line(line)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def format_size(size: int) -> str:
    """A size in bytes, in the unit that fits.

    >>> [format_size(n) for n in (0, 1023, 1536, 1 << 30)]
    ['0 B', '1023 B', '1.5 KiB', '1.0 GiB']
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the loop ends at its last unit")


def count(number: int, noun: str, plural: str = "s") -> str:
    """
    >>> count(1, "broker"), count(0, "topic"), count(2, "batch", "es")
    ('1 broker', '0 topics', '2 batches')
    """
    return f"{number} {noun}{'' if number == 1 else plural}"


def name_all(noun: str, names: Sequence[str], most: int = 5) -> str:
    """
    >>> name_all("topic", ["a"]), name_all("topic", ["a", "b", "c"], most=2)
    ('topic a', 'topics a, b and 1 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{noun}{'' if len(names) == 1 else 's'} {', '.join(names[:most])}{more}"


def json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes of a record as JSON documents show them: text, or the base64 of bytes that are not UTF-8.

    >>> json_bytes(b"tea"), json_bytes(b"\\xff"), json_bytes(None)
    ('tea', {'base64': '/w=='}, None)
    """
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data or b"").decode()}


def format_time(timestamp: int | None) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; `-` for none; the number itself if `datetime` cannot hold it.

    >>> format_time(1_356_998_400_000), format_time(-1), format_time(None)
    ('2013-01-01T00:00:00Z', '-', '-')
    """
    if timestamp is None or timestamp == -1:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{timestamp % 1000:03d}Z" if timestamp % 1000 else f"{text}Z"


def leave_quietly_on_broken_pipe() -> None:
    """The reader of our output has gone (`| head`): discard what the interpreter flushes at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
