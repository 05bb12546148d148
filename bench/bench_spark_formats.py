"""Ten fields of a value decoded in Spark: by us, by Spark's own from_json, and by fastavro in mapInArrow.

Spark's own from_avro and from_protobuf are JARs of their own, so from_json is the peer of all formats. All sides read
the same log directories, two partitions each, through our source, and hand over all fields.

    python -m bench spark_formats
    SEGLOG_BENCH_ROWS=4000000 python -m bench spark_formats
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import seglog
from bench.segments import rounds
from bench.sides import in_turn
from seglog.core.fs import OsFs
from seglog.records.column_encoding import encode_columns
from seglog.spark import get_spark
from seglog.values.json.ddl import parse_ddl
from seglog.values.reader_schema import resolve_formats
from seglog.values.value_options import parse_value_options

CORES: Final = 2
_POOL: Final = 8192
_DDL: Final = (
    "id bigint, flight int, carrier string, origin string, dest string, delay double, distance float, late boolean, "
    "tail string, seats int"
)
_AVRO_TYPES: Final = {"bigint": "long", "int": "int", "string": "string", "double": "double", "float": "float"}
_PROTO_TYPES: Final = {"bigint": "int64", "int": "int32", "boolean": "bool"}
_FIELDS: Final = [tuple(part.split()) for part in _DDL.split(", ")]
_AVRO: Final = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": name, "type": _AVRO_TYPES.get(kind, kind)} for name, kind in _FIELDS],
}
_PROTO_FIELDS: Final = [f"{_PROTO_TYPES.get(kind, kind)} {name} = {n};" for n, (name, kind) in enumerate(_FIELDS, 1)]
_PROTO: Final = f'syntax = "proto3"; message Flight {{ {" ".join(_PROTO_FIELDS)} }}'
_SCHEMAS: Final = {"json": _DDL, "avro": json.dumps(_AVRO), "protobuf": _PROTO}


def main() -> None:
    count = int(os.environ.get("SEGLOG_BENCH_ROWS", "1000000"))
    print(f"ten fields, {count:,} records, local[{CORES}], medians of {rounds()} rounds")
    with tempfile.TemporaryDirectory(prefix="seglog-formats-") as directory:
        paths = {kind: Path(directory) / kind for kind in _SCHEMAS}
        for kind, path in paths.items():
            _fill(path, kind, count)
        spark = get_spark("formats", master=f"local[{CORES}]", config={"spark.driver.memory": "2g"})
        try:
            walls = {name: cost.wall for name, cost in in_turn(_sides(spark, paths), rounds()).items()}
        finally:
            spark.stop()
    for name, wall in walls.items():
        print(f"  {name:44} {wall:6.2f} s  {count / wall / 1e6:5.2f} M rows/s", flush=True)
    for name in ("json", "avro", "protobuf"):
        print(f"  {name} beside from_json: {walls['json, from_json'] / walls[f'{name}, seglog']:5.2f}x, asked 0.5x")
    print(f"  avro beside fastavro: {walls['avro, fastavro in mapInArrow'] / walls['avro, seglog']:5.2f}x")


def _rows() -> list[dict[str, Any]]:
    return [
        {
            "id": number * 7919,
            "flight": number % 5000,
            "carrier": ("UA", "AA", "B6")[number % 3],
            "origin": ("EWR", "LGA", "JFK")[number % 3],
            "dest": f"D{number % 100:02}",
            "delay": number / 8,
            "distance": float(number % 3000),
            "late": number % 4 == 0,
            "tail": f"N{number:05}",
            "seats": number % 400,
        }
        for number in range(_POOL)
    ]


def _fill(path: Path, kind: str, count: int) -> None:
    """Two partitions with the same values, as the sink would encode them."""
    options = parse_value_options({"valueFormat": kind, "valueSchema": _SCHEMAS[kind]})
    chosen = resolve_formats(options, lambda: (), OsFs())
    format_ = chosen.format_of("value")
    assert format_ is not None
    values = format_.encode(pa.array(_rows(), format_.type))
    batch = pa.RecordBatch.from_arrays([values], names=["value"])
    with seglog.open(path) as directory:
        directory.create_topic("t", partitions=CORES)
        for partition in range(CORES):
            log = directory.log("t", partition)
            for _ in range(count // CORES // _POOL):
                log.append(bytes(encode_columns(batch, default_timestamp=1)))


def _sides(spark: SparkSession, paths: dict[str, Path]) -> dict[str, Callable[[], None]]:
    def raw(kind: str) -> DataFrame:
        return spark.read.format("seglog").load(str(paths[kind])).select("value")

    def ours(kind: str) -> DataFrame:
        options = {"valueFormat": kind, "valueSchema": _SCHEMAS[kind]}
        return spark.read.format("seglog").options(**options).load(str(paths[kind])).select("value.*")

    def theirs() -> DataFrame:
        return raw("json").selectExpr(f"from_json(cast(value as string), '{_DDL}') v").select("v.*")

    frames: dict[str, Callable[[], DataFrame]] = {
        "json, bytes only": lambda: raw("json"),
        "json, from_json": theirs,
        "json, seglog": lambda: ours("json"),
        "avro, seglog": lambda: ours("avro"),
        "avro, fastavro in mapInArrow": lambda: raw("avro").mapInArrow(_with_fastavro, _DDL),
        "protobuf, seglog": lambda: ours("protobuf"),
    }
    return {name: partial(_noop, make) for name, make in frames.items()}


def _noop(make: Callable[[], DataFrame]) -> None:
    make().write.format("noop").mode("overwrite").save()


def _with_fastavro(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The code that a user writes without seglog."""
    import fastavro

    schema = fastavro.parse_schema(_AVRO)
    for batch in batches:
        values = [fastavro.schemaless_reader(io.BytesIO(raw), schema) for raw in batch.column("value").to_pylist()]
        columns = pa.array(values, parse_ddl(_DDL))
        assert isinstance(columns, pa.StructArray)
        yield pa.RecordBatch.from_arrays(columns.flatten(), names=[name for name, _ in _FIELDS])
