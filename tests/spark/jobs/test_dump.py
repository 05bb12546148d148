"""`seglog spark dump` against `seglog dump`, which is held to Kafka's own tool."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from seglog.cli.output import json_bytes
from seglog.spark.jobs import dump as job
from tests import golden
from tests.cli.run import Run
from tests.kafka.jars import CURRENT

pytestmark = pytest.mark.xdist_group("spark-jobs")

TOPIC = "codec-zstd"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.log_dir(golden.unpack(tmp_path_factory.mktemp("golden"), CURRENT))


def test_records_as_json_lines(run: Run, data: Path) -> None:
    engines = run("dump", "--records", "--json", data / f"{TOPIC}-0").objects
    ours = run("spark", "dump", data, "--topic", TOPIC, "--json").objects
    ours.sort(key=lambda row: row["offset"])
    same = ("topic", "partition", "offset", "timestamp", "timestampType")
    assert [[row[name] for name in same] for row in ours] == [[row[name] for name in same] for row in engines]
    for name in ("key", "value"):
        assert [_text(row[name]) for row in ours] == [row[name] for row in engines]
    assert [[[one["key"], _text(one["value"])] for one in row["headers"] or []] for row in ours] == [
        row["headers"] for row in engines
    ]


def _text(base64: str | None) -> object:
    """As the engine's dump shows the bytes that Spark shows as base64."""
    return None if base64 is None else json_bytes(b64decode(base64))


def test_batches_into_parquet_and_a_range(run: Run, data: Path, tmp_path: Path) -> None:
    engines = run("dump", "--json", data / f"{TOPIC}-0" / f"{0:020d}.log").objects
    done = run("spark", "dump", data, "--topic", TOPIC, "--view", "batches", "--output", tmp_path / "out")
    assert done.lines == [f"{len(engines)} rows in {tmp_path / 'out'}"]
    rows = pq.read_table(str(tmp_path / "out")).to_pylist()
    assert sorted(row["position"] for row in rows) == [row["position"] for row in engines]
    some = run(
        "spark", "dump", data, "--topic", TOPIC, "--option", f'startingOffsets={{"{TOPIC}":{{"0":7}}}}', "--columns",
        "offset", "--where", "offset < 9", "--json",
    )  # fmt: skip
    assert sorted(row["offset"] for row in some.objects) == [7, 8]


def test_a_table_for_people(run: Run, data: Path) -> None:
    shown = run("spark", "dump", data, "--topic", TOPIC, "--columns", "offset,value", "--limit", "2")
    assert shown.lines[0].split() == ["offset", "value"]
    assert len(shown.lines) == 4
    assert shown.lines[-1].startswith("… and more")
    wrong = run("spark", "dump", data, "--topic", "nix")
    assert (wrong.code, wrong.text) == (2, "")
    assert wrong.err.startswith("seglog: there is no topic 'nix'; existing: ")
    assert wrong.err.count("\n") == 1


def test_as_a_function(spark: SparkSession, data: Path) -> None:
    frame = job.dump(spark, [str(data / f"{TOPIC}-0")], view="segments")
    (document,) = job.documents(frame)
    assert (document["topic"], document["codecs"], document["txnIndexSize"]) == (TOPIC, ["zstd"], None)
    records = job.documents(job.dump(spark, str(data), topics=[TOPIC], options={"columns": "value"}))
    values = {None if row["value"] is None else b64decode(row["value"]) for row in records}
    assert values == {record.value for record in golden.expected_records(data.parent, f"{TOPIC}-0")}
