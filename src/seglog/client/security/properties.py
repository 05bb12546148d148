"""Java's properties files (``java.util.Properties.load``)."""

from __future__ import annotations

import re
from typing import Final

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_CONTINUED: Final = re.compile(r"(?:^|[^\\])(?:\\\\)*\\$")
_KEY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u(.{0,4})|(.?))", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX: Final = re.compile(r"[0-9a-fA-F]{4}")
_SPACE: Final = " \t\f"


def parse_properties(text: str) -> dict[str, str]:
    r"""Keys and values; the last line with a key counts. ValueError for a ``\u`` without four hexadecimal digits.

    >>> parse_properties("# secrets\nuser = alice\npassword: a\\u0020b\\\n   c")
    {'user': 'alice', 'password': 'a bc'}
    """
    found = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None  # the pattern matches the empty text
        found[_unescape(match[1])] = _unescape(line[match.end() :])
    return found


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    begun = ""
    for line in _LINE_END.split(text):
        line = line.lstrip(_SPACE)
        if not begun and (not line or line[0] in "#!"):
            continue
        if _CONTINUED.search(line):
            begun += line[:-1]
        else:
            lines.append(begun + line)
            begun = ""
    return [*lines, begun] if begun else lines


def _unescape(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        if found[1] is None:
            return _ESCAPED.get(found[2], found[2])
        if not _HEX.fullmatch(found[1]):
            raise ValueError("\\u needs four hexadecimal digits")
        return chr(int(found[1], 16))

    # Java's characters are those of UTF-16: two escapes may be one character.
    return _ESCAPE.sub(replace, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
