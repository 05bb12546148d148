"""JSON and floats as Java prints them."""

from __future__ import annotations

import pytest

from seglog.records.message_json import json_text


def test_writes_json_as_jackson_does() -> None:
    value = {"a": ['"\\\n\x1f/é', None, True, 1.0, 2**40], "b": {}}
    assert json_text(value) == '{"a":["\\"\\\\\\n\\u001F/é",null,true,1.0,1099511627776],"b":{}}'


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-3, "0.001"), (9.99e-4, "9.99E-4"), (9999999.0, "9999999.0"), (-1.25e10, "-1.25E10"), (0.0, "0.0")],
)
def test_prints_floats_as_java_does(value: float, text: str) -> None:
    assert json_text(value) == text
