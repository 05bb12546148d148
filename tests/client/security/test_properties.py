"""Java's properties files. `tests/interop/test_client_texts.py` compares them with Java's own reader."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.client.security.properties import parse_properties
from tests.cases import case

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def escaped(text: str) -> str:
    """As ``Properties.store`` writes a text, but every second of its characters as an escape."""
    words = memoryview(text.encode("utf-16-le")).cast("H").tolist()
    return "".join(f"\\u{word:04x}" for word in words)


@given(st.dictionaries(_TEXT, _TEXT, max_size=5), st.sampled_from(["=", ":", " ", " \t= "]))
def test_escaped_text_is_read_back(pairs: dict[str, str], separator: str) -> None:
    case()
    lines = [f"  {escaped(key)}{separator}{escaped(value)}\r\n# {key.split()}\n" for key, value in pairs.items() if key]
    assert parse_properties("\n".join(lines)) == {key: value for key, value in pairs.items() if key}


@given(st.text(st.sampled_from("ab=: \\\t\n\r#!u0\f"), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    case()
    with contextlib.suppress(ValueError):
        parse_properties(text)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("a:b\na=c", {"a": "c"}),
        ("a b=c", {"a": "b=c"}),
        ("a", {"a": ""}),
        ("a\\ b=c", {"a b": "c"}),
        ("a=b\\\n  c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("#a=b\n!c=d\n\n  #e", {}),
        ("a=\\u00e4\\t\\q", {"a": "ä\tq"}),
        ("a=b\\", {"a": "b"}),
        ("a=b\\\n#c", {"a": "b#c"}),
        ("=b", {"": "b"}),
    ],
)
def test_pairs(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


def test_a_broken_escape_is_refused() -> None:
    with pytest.raises(ValueError, match="four hexadecimal digits"):
        parse_properties("a=\\u12g4")
