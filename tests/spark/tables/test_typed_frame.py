"""A table with typed values and its log's tail are one frame of one type, also after the schema has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from seglog.spark import table
from seglog.table.building import update_table
from seglog.testing import Broker
from tests.table.typed_logs import NEW, OLD, hashes, new_value, old_value, scanned_with, without, write
from tests.values.batches import register

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker(registry=True) as broker:
        yield broker.registry_url


def _names(frame: DataFrame) -> list[str | None]:
    rows = frame.where("value is not null").orderBy("partition", "offset").select("value.name").collect()
    return [row[0] for row in rows]


def test_files_and_tail_have_the_tables_types_before_and_after_evolution(
    spark: SparkSession, tmp_path: Path, url: str
) -> None:
    log, path = tmp_path / "log", tmp_path / "warehouse" / "flights"
    options = {"valueFormat": "avro", "schema.registry.url": url, "mode": "permissive"}
    old = register(url, "flights-value", OLD)
    write(log, OLD, [*(old_value(n) for n in range(20)), None], number=old)
    update_table(log, path, topic="flights", options=options)
    write(log, OLD, [old_value(20), b"no Avro"], number=old, partition=1)
    with_tail = table(spark, path, tail=log)
    assert with_tail.schema == table(spark, path).schema
    assert hashes(with_tail.toArrow()) == hashes(scanned_with(log, options))

    new = register(url, "flights-value", NEW)
    write(log, NEW, [new_value(n) for n in range(20)], number=new)
    write(log, OLD, [old_value(n) for n in range(20, 25)], number=old, partition=1)
    pinned = table(spark, path, tail=log)  # the registry has a newer schema; int cannot be read from its long
    assert pinned.schema == with_tail.schema
    assert pinned.where("valueBytes is not null").count() == 1 + 20
    update_table(log, path, topic="flights", options=options)
    write(log, NEW, [new_value(n) for n in range(20, 25)], number=new)
    frame = table(spark, path, tail=log)
    assert frame.schema == table(spark, path).schema
    assert hashes(without(frame.toArrow(), "name")) == hashes(scanned_with(log, options))
    assert _names(frame) == [*(f"N{n % 5}" for n in range(20)), *[None] * 31]
    assert frame.where("value.n >= 1099511627776").count() == 25
    assert frame.where("value.n < 10").count() == 10
    assert frame.where("value.place.y is not null and value.title = 'T1'").count() == 3
    assert min(row[0] for row in frame.select("value.place.x").where("x > 5").collect()) == 5.25
