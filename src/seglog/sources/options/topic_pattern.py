"""``subscribePattern``: Java's regular expressions for topic names, translated to Python's."""

from __future__ import annotations

import re
from typing import Final

_POSIX: Final = {
    "Lower": "a-z", "Upper": "A-Z", "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "XDigit": "0-9a-fA-F",
    "Punct": r"!-/:-@\[-`{-~", "IsAlphabetic": "a-zA-Z", "IsDigit": "0-9", "L": "a-zA-Z", "Lu": "A-Z", "Ll": "a-z",
    "N": "0-9", "Nd": "0-9",
}  # fmt: skip
"""Java's classes, reduced to the characters that a topic name can have."""
_PIECE: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)|\\p(?:\{(?P<posix>\w+)\}|(?P<one>[A-Z]))|\\(?P<end>z)"
    r"|\(\?<(?P<group>[A-Za-z]\w*)>|(?P<escaped>\\.)|(?P<open>\[\^?\]?)|(?P<close>\])|(?P<nested>&&)",
    re.DOTALL,
)


def compile_java(pattern: str) -> re.Pattern[str]:
    """Translate a pattern of ``java.util.regex`` for topic names. Raises `re.error` if Python has no equivalent.

    Python accepts most of Java's syntax, including possessive quantifiers and atomic groups. This function rewrites
    ``\\Q…\\E``, classes such as ``\\p{Alpha}``, ``(?<name>…)`` and ``\\z``. It raises an error for intersections and
    unions of character classes (``[a-z&&[^b]]``), ``\\P{…}`` and look-behinds of varying length.
    """
    out, at, inside = [], 0, False
    for match in _PIECE.finditer(pattern):
        out.append(pattern[at : match.start()])
        at = match.end()
        name = match["posix"] or match["one"]
        if match["quoted"] is not None:
            out.append(re.escape(match["quoted"]))
        elif name is not None:
            if name not in _POSIX:
                raise re.error(f"the class \\p{{{name}}} is not supported", pattern, match.start())
            out.append(_POSIX[name] if inside else f"[{_POSIX[name]}]")
        elif match["end"]:
            out.append(r"\Z")
        elif match["group"]:
            out.append(f"(?P<{match['group']}>")
        elif inside and (match["open"] or match["nested"]):
            raise re.error("a character class inside of another is not supported", pattern, match.start())
        else:
            inside = bool(match["open"]) or (inside and not match["close"])
            out.append(match[0])
    out.append(pattern[at:])
    return re.compile("".join(out), re.ASCII)
