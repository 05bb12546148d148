from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import seglog
from seglog.core.errors import InvalidConfigError, UndecodableValueError

DDL = {"valueSchema": "n bigint"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with seglog.open(tmp_path / "log") as directory:
        directory.create_topic("t")
        values = [b'{"n": 1}', None, b"bad", b'{"n": 2}']
        directory.log("t").append_records([seglog.NewRecord(value, key=b"5") for value in values])
    return tmp_path / "log"


def test_values_are_structs(path: Path) -> None:
    reader = seglog.scan(path, end=2, columns=["offset", "value"], value_format="json", format_options=DDL)
    assert str(reader.schema.field("value").type) == "struct<n: int64>"
    assert reader.read_all().to_pylist() == [{"offset": 0, "value": {"n": 1}}, {"offset": 1, "value": None}]


def test_the_first_bad_value_is_an_error_or_null(path: Path) -> None:
    with pytest.raises(UndecodableValueError, match="topic t, partition 0, offset 2: the value cannot be decoded"):
        seglog.scan(path, value_format="json", format_options=DDL).read_all()
    options: dict[str, Any] = {"value_format": "json", "format_options": DDL, "permissive": True}
    table = seglog.scan(path, **options).read_all()
    assert table.column("value").to_pylist() == [{"n": 1}, None, None, {"n": 2}]
    assert table.column("valueBytes").to_pylist() == [None, None, b"bad", None]
    only = seglog.scan(path, columns=["valueBytes"], **options).read_all()
    assert only.schema.names == ["valueBytes"]


def test_keys_and_other_columns(path: Path) -> None:
    options = {"keySchema": "int"}
    table = seglog.scan(path, key_format="json", format_options=options).read_all()
    assert table.column("key").to_pylist() == [5] * 4
    assert table.column("value").to_pylist()[2] == b"bad"
    assert seglog.scan(path, columns=["offset"], key_format="json", format_options=options).read_all().num_rows == 4


def test_what_cannot_be_is_refused_at_once(path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"value_format": "json"}, "needs valueSchema or schema.registry.url"),
        ({"value_format": "json", "format_options": {"valueSchemas": "a int"}}, "there is no option 'valueSchemas'"),
        ({"value_format": "json", "format_options": DDL, "columns": ["valueBytes"]}, "no column 'valueBytes'"),
        ({"format_options": DDL}, "no effect without valueFormat"),
    ]
    for arguments, reason in wrong:
        with pytest.raises(InvalidConfigError, match=reason):
            seglog.scan(path, **arguments)
