"""Malformed UTF-8 as Java prints it."""

from __future__ import annotations

import pytest

from seglog.core.utf8 import decode_utf8


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("61 ed a0 80 62", "a\ufffdb"),
        ("ed a0", "\ufffd"),
        ("ed a0 41", "\ufffdA"),
        ("e2 82", "\ufffd"),
        ("e2 41 42", "\ufffdAB"),
        ("e0 80 80", "\ufffd\ufffd\ufffd"),
        ("f0 9f a6", "\ufffd"),
        ("f0 9f 41", "\ufffdA"),
        ("f0 80 80 80", "\ufffd\ufffd\ufffd\ufffd"),
        ("f4 90 80 80", "\ufffd\ufffd\ufffd\ufffd"),
        ("f5 80", "\ufffd\ufffd"),
        ("c3", "\ufffd"),
        ("c0 80", "\ufffd\ufffd"),
        ("f0 9f a6 80", "\U0001f980"),
    ],
)
def test_replaces_malformed_utf8_as_java_does(data: str, text: str) -> None:
    """The output of Java 17; `tests/interop/test_dump.py` compares some ten thousand more."""
    assert decode_utf8(bytes.fromhex(data)) == text
    assert decode_utf8(memoryview(bytes.fromhex(data))) == text
