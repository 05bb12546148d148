"""The source as Sail calls it: PySpark's API without a JVM, which hands over Arrow schemas. `docs/spark.md`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import seglog
from pyspark_seglog import DefaultSource
from seglog.core.errors import InvalidConfigError


@pytest.mark.parametrize("view", ["records", "batches"])
def test_schemas_are_arrow_schemas_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    monkeypatch.setitem(sys.modules, "pysail", ModuleType("pysail"))
    with seglog.open(tmp_path) as directory:
        directory.create_topic("t")
        for number in range(3):
            directory.log("t").append_records([seglog.NewRecord(b"%d" % number)])
    source: Any = DefaultSource({"path": str(tmp_path), "subscribe": "t", "view": view})
    schema = source.schema()
    assert isinstance(schema, pa.Schema)
    if view == "records":
        assert schema.field("timestamp").type == pa.timestamp("us", "UTC")
    reader = source.reader(schema)
    found = pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])
    assert found.num_rows == 3
    assert found.schema.names == schema.names
    with pytest.raises(InvalidConfigError, match="write with Spark"):
        source.writer(schema, overwrite=False)
    chosen = source.reader(pa.schema([schema.field("partition")]))
    narrow = [batch for part in chosen.partitions() for batch in chosen.read(part)]
    assert {name for batch in narrow for name in batch.schema.names} == {"partition"}
