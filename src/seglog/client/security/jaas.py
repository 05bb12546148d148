"""``sasl.jaas.config``: one login module with its options (``JaasConfig.java``).

::

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="…";

The parser is strict: one module, options with ``=``, a semicolon at the end. References to secrets stay as they are;
they are resolved after parsing, so that a secret may contain quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN: Final = re.compile(
    r"\s*(?:"
    r'"(?P<double>(?:[^"\\\r\n]|\\.)*)"'
    r"|'(?P<single>(?:[^'\\\r\n]|\\.)*)'"
    r"|(?P<mark>[=;])"
    r"|(?P<word>(?:\$\{[^}\s]*\}|[^\W\d]|\$)(?:\$\{[^}\s]*\}|[\w.$-])*)"
    r")",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class Jaas(NamedTuple):
    """``module`` is the class's full name. Do not print ``options``: they have the password."""

    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Jaas({self.module}, {', '.join(self.options)})"


def parse_jaas(text: str) -> Jaas:
    """ValueError, without any value, if the text is not one login module.

    >>> parse_jaas('a.b.PlainLoginModule required username="alice" password="a \\\\"b\\\\"";').options["password"]
    'a "b"'
    """
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[0].is_mark or tokens[-1] != _END:
        raise ValueError('it must be: <login module> required <option>="<value>" …;')
    if tokens[1].is_mark or tokens[1].text.lower() not in _FLAGS:
        raise ValueError(f"the word after the login module must be one of {', '.join(sorted(_FLAGS))}")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    if _END in rest:
        raise ValueError("only one login module is allowed")
    for number, at in enumerate(range(0, len(rest), 3), 1):
        part = rest[at : at + 3]
        if len(part) < 3 or part[0].is_mark or part[1] != _EQUALS or part[2].is_mark:
            raise ValueError(f'option {number} is not <name>="<value>"')
        if part[0].text in options:
            raise ValueError(f"option {number} repeats a name")
        options[part[0].text] = part[2].text
    return Jaas(tokens[0].text, options)


class _Token(NamedTuple):
    text: str
    is_mark: bool


_END: Final = _Token(";", is_mark=True)
_EQUALS: Final = _Token("=", is_mark=True)


def _tokens(text: str) -> list[_Token]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at, end)
        if match is None:
            raise ValueError(f"character {at + 1} and those after it cannot be read: a quote is missing or misplaced")
        at = match.end()
        if match["mark"]:
            tokens.append(_Token(match["mark"], is_mark=True))
        elif match["word"]:
            tokens.append(_Token(match["word"], is_mark=False))
        else:
            quoted = match["double"] if match["double"] is not None else match["single"]
            tokens.append(_Token(_ESCAPE.sub(_unescape, quoted), is_mark=False))
    return tokens


def _unescape(found: re.Match[str]) -> str:
    escaped = found[1]
    return chr(int(escaped, 8)) if escaped.isdecimal() and escaped < "8" else _ESCAPED.get(escaped, escaped)
