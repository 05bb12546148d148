"""Java's ``.properties`` format (``java.util.Properties``), as ``meta.properties`` has it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from seglog.core.errors import CorruptCheckpointError

_WHITE: Final = " \t\f"
_TO_ESCAPE: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"} | {char: "\\" + char for char in "\\=:#!"}
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(u.{0,4}|.?)", re.DOTALL)
_KEY: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)


class Property(NamedTuple):
    """A value, and the number of the line that it begins in."""

    value: str
    line: int


def encode_properties(values: Mapping[str, str], now_ms: int) -> bytes:
    """As ``Properties.store`` writes: an empty comment, the date (in UTC here), the keys in order; all of it ASCII.

    >>> encode_properties({"b": " #1", "a": "x"}, 0)
    b'#\\n#Thu Jan 01 00:00:00 UTC 1970\\na=x\\nb=\\\\ \\\\#1\\n'
    """
    date = datetime.fromtimestamp(now_ms / 1000, tz=UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    lines = ["#", f"#{date}"]
    for key in sorted(values):
        value = values[key]
        stripped = value.lstrip(" ")
        leading = "\\ " * min(len(value) - len(stripped), 1) + value[1 : len(value) - len(stripped)]
        lines.append(f"{_escape(key).replace(' ', chr(92) + ' ')}={leading}{_escape(stripped)}")
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def _escape(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    chars = (chr(units[at] << 8 | units[at + 1]) for at in range(0, len(units), 2))
    return "".join(_TO_ESCAPE.get(char) or (char if " " <= char <= "~" else f"\\u{ord(char):04X}") for char in chars)


def decode_properties(data: bytes, file: str | None = None) -> dict[str, Property]:
    """The keys of a file in ISO-8859-1; the last of several equal keys counts. `CorruptCheckpointError` on a bad
    ``\\u``."""
    found = {}
    for at, line in _logical_lines(data.decode("iso-8859-1")):
        match = _KEY.match(line)
        key, value = (match[1], line[match.end() :]) if match else ("", "")
        found[_unescape(key, at, file)] = Property(_unescape(value, at, file), at)
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without leading white space, comments and blank ones; a backslash at a line's end joins the next to it."""
    joined = None
    start = 0
    for at, line in enumerate(re.split("\r\n|\r|\n", text), start=1):
        line = line.lstrip(_WHITE)
        if joined is None:
            if not line or line[0] in "#!":
                continue
            joined, start = "", at
        joined += line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined = joined[:-1]
            continue
        yield start, joined
        joined = None
    if joined is not None:
        yield start, joined


def _unescape(text: str, line: int, file: str | None) -> str:
    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[:1] != "u":
            return _ESCAPED.get(escape, escape)
        if not re.fullmatch("u[0-9A-Fa-f]{4}", escape):
            raise CorruptCheckpointError(f"line {line}: malformed escape {match[0]!r}", file=file)
        return chr(int(escape[1:], 16))

    units = _ESCAPE.sub(replace, text)
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")
