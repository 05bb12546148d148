"""Values with types come through brokers as from directories."""

from __future__ import annotations

from seglog.testing import Broker
from tests.spark.logs import batches, make_reader


def test_json_values_are_structs() -> None:
    with Broker({"t": [b'{"a": 1, "b": "x"}', b'{"a": 2}']}) as broker:
        options = {
            "subscribe": "t",
            "valueFormat": "json",
            "valueSchema": "a int, b string",
            "columns": "value, offset",
        }
        reader = make_reader({"kafka.bootstrap.servers": broker.bootstrap, **options})
        found = [row for batch in batches(reader) for row in batch.to_pylist()]
    assert found == [
        {"value": {"a": 1, "b": "x"}, "offset": 0},
        {"value": {"a": 2, "b": None}, "offset": 1},
    ]
