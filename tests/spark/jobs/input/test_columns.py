"""Columns of records from columns of files, by expressions."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from seglog.core.errors import InvalidConfigError
from seglog.spark.jobs.input.columns import Columns, make_records, names_of
from seglog.spark.jobs.input.json_text import json_rows


def test_expressions() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a", None, 'c"d\\e\nf']), pa.array([1, 2, None]), pa.array([1.5, float("nan"), None])],
        ["text", "number", "real"],
    )

    def values(expression: str) -> list[Any]:
        made = make_records(
            Columns(value=expression), 3, lambda name: json_rows(batch) if name == "*" else batch.column(name), None
        )
        return made.column("value").to_pylist()

    assert values("text") == [b"a", None, b'c"d\\e\nf']
    assert values("number") == [b"1", b"2", None]
    assert values("{{{number}}}-{text}!") == [b"{1}-a!", None, None]
    assert values("'as it is'") == [b"as it is"] * 3
    assert [json.loads(one) for one in values("*")] == [
        {"text": "a", "number": 1, "real": 1.5},
        {"text": None, "number": 2, "real": None},
        {"text": 'c"d\\e\nf', "number": None, "real": None},
    ]
    with pytest.raises(InvalidConfigError, match="an unmatched brace"):
        names_of("{a")


@pytest.mark.parametrize(
    ("values", "columns", "expected"),
    [
        (pa.array(["2013-01-01T05:00:00Z", None]), Columns(timestamp="t"), [1357016400000, None]),
        (pa.array(["2013-01-01 05:00:00.1234567"]), Columns(timestamp="t"), [1357016400123]),
        (pa.array(["2013-01-01T07:00:00+02:00"]), Columns(timestamp="t"), [1357016400000]),
        (pa.array(["2013-01-01"]), Columns(timestamp="t"), [1356998400000]),
        (pa.array(["1357016400000"]), Columns(timestamp="t"), [1357016400000]),
        (pa.array([1357016400]), Columns(timestamp="t", timestamp_unit="s"), [1357016400000]),
        (pa.array([1357016400000999]), Columns(timestamp="t", timestamp_unit="us"), [1357016400000]),
        (pa.array([1357016400.5]), Columns(timestamp="t", timestamp_unit="s"), [1357016400500]),
        (
            pa.array(["01/Jan/2013:06:00:00 +0100"]),
            Columns(timestamp="t", timestamp_format="%d/%b/%Y:%H:%M:%S %z"),
            [1357016400000],
        ),
    ],
)
def test_times(values: pa.Array, columns: Columns, expected: list[int | None]) -> None:
    made = make_records(columns, len(values), lambda _: values, pa.array([b"v"] * len(values)))
    assert made.column("timestamp").to_pylist() == expected
