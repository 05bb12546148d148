"""What the commands print: to people on a terminal, to programs as JSON, and plain lines to everything else."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import BinaryIO, Final, Protocol

FINE: Final = 0
DAMAGE: Final = 1
"""Exit code when something is wrong with the bytes that were looked at."""
FAILED: Final = 2
"""Exit code for a wrong command line, and for files that cannot be read."""

_FLUSH_CHARACTERS: Final = 1 << 20
_NARROWEST: Final = 12
"""Characters that a column of text keeps, however narrow the terminal is."""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_GAP: Final = 2
"""Between two columns, as rich draws them without a box."""


class Out:
    """Text for stdout, in UTF-8 whatever the locale says, written a megabyte at a time.

    A file's name that is not UTF-8 comes out as it is, in JSON as ``\\udcNN`` for a byte NN, which Python reads back.
    """

    __slots__ = ("_parts", "_size", "_stream")

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = sys.stdout.buffer if stream is None else stream
        self._parts: list[str] = []
        self._size = 0

    def write(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        if self._size >= _FLUSH_CHARACTERS:
            self._drain()

    def line(self, text: str) -> None:
        self.write(text + "\n")

    def json(self, value: object) -> None:
        """One compact JSON document on a line of its own."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        self.line(text if text.isascii() else text.encode(errors="backslashreplace").decode())

    def raw(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes that are UTF-8 already, in their turn."""
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


def warn(text: str) -> None:
    """A line on stderr, if there is one (not after `2>&-`): never on stdout."""
    if sys.stderr is not None:
        print(text, file=sys.stderr)


def fail(reason: object) -> int:
    """Say in one line why the command failed; returns the exit code for it."""
    warn(f"seglog: {reason}")
    return FAILED


def describe_os_error(error: OSError) -> str:
    """An OSError in words, without the errno number.

    >>> describe_os_error(FileNotFoundError(2, "No such file or directory", "x.log"))
    'x.log: No such file or directory'
    """
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename is not None else reason


def show_table(
    out: Out, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """A table: drawn by rich on a terminal, else aligned columns. ``right``: the columns of numbers."""
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
    """How wide each column is in a terminal of ``total`` characters. The widest column of text gives way first, down to
    `_NARROWEST`, and its cells wrap; numbers and times never do. None if the table is too wide even so.

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
    """What no table of this width can show: a row is its first cell, then each column's name with its cell, on as many
    lines as it needs; a cell is cut nowhere."""
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
    """Bytes in a unit that keeps the number short.

    >>> [format_size(n) for n in (0, 1023, 1536, 1 << 30)]
    ['0 B', '1023 B', '1.5 KiB', '1.0 GiB']
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the loop ends at its last unit")


def format_time(timestamp: int | None) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; `-` for none, the bare number where no calendar has such a day.

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


class Progress(Protocol):
    """Takes how much more was done, in the unit of the total (mostly bytes)."""

    def __call__(self, amount: int) -> None: ...


@contextmanager
def progress(label: str, total: int) -> Iterator[Progress]:
    """A bar on stderr, from the third second on, and only if stderr is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _draw_nothing
        return
    bar = _LateBar(label, total)
    try:
        yield bar
    finally:
        bar.close()


def _nothing() -> None:
    pass


def _draw_nothing(amount: int) -> None:
    del amount


class _LateBar:
    """Draws nothing, and imports nothing, before two seconds have passed."""

    def __init__(self, label: str, total: int) -> None:
        from seglog.core.clock import SystemClock

        self._label = label
        self._total = total
        self._done = 0
        self._now = SystemClock().monotonic
        self._start = self._now()
        self._draw: Progress | None = None
        self._stop: Callable[[], None] = _nothing

    def __call__(self, amount: int) -> None:
        self._done += amount
        if self._draw is not None:
            self._draw(amount)
        elif self._now() - self._start > 2:
            self._begin()

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        bar = RichProgress(console=Console(stderr=True), transient=True)
        bar.start()
        task = bar.add_task(self._label, total=self._total, completed=self._done)
        self._draw = lambda amount: bar.advance(task, amount)
        self._stop = bar.stop

    def close(self) -> None:
        self._stop()


def leave_quietly_on_broken_pipe() -> None:
    """The reader of our output is gone (`| head`): let the interpreter's own last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
