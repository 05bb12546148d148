"""JSON values as Spark's own ``from_json`` reads them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

import seglog
from seglog.values.json.ddl import parse_ddl

pytestmark = pytest.mark.xdist_group("spark")
DDL = (
    "b boolean, i int, l bigint, d double, f float, s string, dec decimal(12,3), day date, at timestamp, "
    "local timestamp_ntz, xs array<int>, m map<string,double>, o struct<a:string,b:struct<c:bigint>>, raw binary"
)


def _value(rng: random.Random) -> dict[str, Any]:
    text = "".join(rng.choice('aé"\\\n\t☃𝄞 ') for _ in range(rng.randrange(6)))
    values: dict[str, Any] = {
        "b": rng.random() < 0.5,
        "i": rng.randrange(-(2**31), 2**31),
        "l": rng.randrange(-(2**63), 2**63),
        "d": rng.choice([rng.uniform(-1e9, 1e9), 1e300, 5, -0.0, "NaN", "Infinity"]),
        "f": rng.choice([0.5, -1.25, 3]),
        "s": text,
        "dec": rng.choice([1, -0.125, 99999.5, 123456789]),
        "day": f"{rng.randrange(1800, 2200)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}",
        "at": f"2013-01-31T12:00:{rng.randrange(60):02}.{rng.randrange(10**6):06}{rng.choice(['Z', '+05:30'])}",
        "local": "2013-01-31T12:00:00",
        "xs": [rng.choice([None, rng.randrange(9)]) for _ in range(rng.randrange(3))],
        "m": {str(key): rng.random() for key in range(rng.randrange(3))},
        "o": {"a": text, "b": rng.choice([None, {}, {"c": 5}])},
        "raw": "aGk=",
        "unknown": [{"x": 1}],
    }
    chosen = {name: one for name, one in values.items() if rng.random() < 0.8}
    return {name: None if rng.random() < 0.1 else one for name, one in chosen.items()}


def test_values_are_those_of_from_json(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(17)
    values = [json.dumps(_value(rng), ensure_ascii=rng.random() < 0.5).encode() for _ in range(400)]
    with seglog.open(tmp_path) as directory:
        directory.create_topic("t")
        directory.log("t").append_records([seglog.NewRecord(one) for one in [*values, None]])
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        ours = spark.read.format("seglog").option("valueFormat", "json").option("valueSchema", DDL).load(str(tmp_path))
        raw = spark.read.format("seglog").load(str(tmp_path))
        theirs = raw.selectExpr("offset", f"from_json(cast(value as string), '{DDL}') value")
        assert ours.schema["value"].dataType == theirs.schema["value"].dataType
        joined = ours.alias("a").join(theirs.alias("b"), "offset")
        rows = joined.selectExpr("offset", "to_json(a.value)", "to_json(b.value)").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    assert len(rows) == 401
    assert [(row[0], row[1], row[2]) for row in rows if row[1] != row[2]] == []


@pytest.mark.parametrize(
    "text",
    [
        "a int, b struct<c: string, d: array<map<string, decimal(10,2)>>>",
        "`a b` bigint, `c``d` double",
        "a boolean, b tinyint, c smallint, d float, e binary, f date, g timestamp, h timestamp_ntz, i decimal",
        "struct<a: decimal(5)>",
        "string",
        "A Array < Struct < x : BIGINT , y : double > >",
    ],
)
def test_columns_are_written_as_spark_writes_them(spark: SparkSession, text: str) -> None:
    del spark  # Spark parses them in its JVM
    assert parse_ddl(text) == to_arrow_type(DataType.fromDDL(text), timezone="UTC")
