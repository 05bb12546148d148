"""Answers keep their limit and lead to every row, whatever the rows are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.mcp.answers import MOST_CHARACTERS, page, visible

_TEXTS = st.text(max_size=60) | st.integers(0, 4).map(lambda size: "\u202e" * 10**size)
_ROWS = st.dictionaries(st.sampled_from("abc"), _TEXTS | st.lists(_TEXTS, max_size=5) | st.none(), max_size=3)


@given(st.lists(_ROWS, max_size=40), _ROWS, st.integers(1, 50))
def test_all_rows_come_in_answers_of_limited_size(rows: list[Any], head: dict[str, Any], count: int) -> None:
    numbered = [{"number": number, **row} for number, row in enumerate(rows)]
    first: int | None = 0
    seen: list[int] = []
    while first is not None:
        text = page(head, "rows", numbered, first, count).text()
        assert len(text) <= MOST_CHARACTERS
        assert all(one.isprintable() for one in text)
        found = json.loads(text)
        shown = [one["number"] for one in found["rows"]]
        assert len(shown) <= count
        assert "cut" in found or found["rows"] == numbered[first : first + count]
        seen += shown
        first = found["next"]
    assert seen == list(range(len(rows)))


@pytest.mark.parametrize(
    "large",
    [
        "x" * 10**6,
        ["x" * 100] * 10_000,
        {f"name {number}": number for number in range(100_000)},
        {"a" * 100_000: 1},
        [[["x" * 1000] * 100] * 100],
        [{"directories": [{f"file {file}": "x" * 300 for file in range(40)}] * 12}] * 12,
        "\x00" * 10**5,
    ],
)
def test_one_large_row_is_shortened_and_says_so(large: Any) -> None:
    for head, row in (({}, {"row": large}), ({"head": large}, {"row": 1})):
        text = page(head, "rows", [row, {"row": 2}], 0, 2).text()
        assert len(text) <= MOST_CHARACTERS
        found = json.loads(text)
        assert (len(found["rows"]) > 0, "shortened" in found["cut"]) == (True, True)
        assert found["next"] in (None, 1)


def test_a_deep_row_is_shortened() -> None:
    row: Any = "x" * 50_000
    for _ in range(200):
        row = [row]
    assert len(page({}, "rows", [row], 0, 1).text()) <= MOST_CHARACTERS


@given(st.text())
def test_escapes_keep_the_text(text: str) -> None:
    document = json.dumps(text, ensure_ascii=False)
    assert json.loads(visible(document)) == text
    assert visible(document).isprintable()
