"""The view of groups' offsets, held to Kafka's own decoder; and views as Spark shows them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from seglog.sources.views.group_rows import describe
from seglog.spark.views.tables import BATCHES, GROUP_OFFSETS, SEGMENTS
from tests import golden
from tests.cases import case
from tests.kafka.jars import CURRENT
from tests.sources.views.view_reading import Row, read

pytestmark = pytest.mark.xdist_group("spark-jobs")

# Group offsets


def decoded_by_kafka(root: Path) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Key and value of each record, as DumpLogSegments printed them."""
    (text,) = (root / "expected" / "__consumer_offsets-0").glob("*.deep.txt")
    return [
        (json.loads(match[1]), None if match[2] == "<DELETE>" else json.loads(match[2]))
        for match in re.finditer(r" key: (\{.*?\}\}) payload: (.*)$", text.read_text(), re.MULTILINE)
    ]


def current_offsets(frame: DataFrame) -> DataFrame:
    """The current offsets in a frame of the view ``group-offsets``: each group's last commit for each partition."""
    latest = (
        frame.where("type in ('OffsetCommit', 'LegacyOffsetCommit')")
        .groupBy("group", "topic", "partition")
        .agg(f.max_by(f.struct("*"), "logOffset").alias("latest"))
    )
    return latest.select("latest.*").where("not isDeleted")


def test_group_offsets_equal_those_of_kafkas_decoder(tmp_path: Path) -> None:
    root = golden.unpack(tmp_path, CURRENT)
    expected = decoded_by_kafka(root)
    rows = read("group-offsets", golden.log_dir(root))
    assert len(rows) == len(expected) > 3
    commits = 0
    for row, (key, value) in zip(rows, expected, strict=True):
        fields = key["data"]
        assert row["group"] == fields.get("group", fields.get("groupId"))
        assert row["isDeleted"] == (value is None)
        if key["type"] in ("0", "1"):
            commits += 1
            assert (row["topic"], row["partition"]) == (fields["topic"], fields["partition"])
            if value is not None:
                data = value["data"]
                assert (row["offset"], row["metadata"]) == (data["offset"], data["metadata"])
                assert row["leaderEpoch"] == data.get("leaderEpoch")
                assert row["commitTimestamp"].timestamp() * 1000 == pytest.approx(data["commitTimestamp"])
        elif value is not None:
            shown = json.loads(row["json"])
            assert set(shown) == set(value["data"])
            assert shown.get("protocolType") == value["data"].get("protocolType")
    assert commits
    assert [row["logOffset"] for row in rows] == sorted(row["logOffset"] for row in rows)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"", "a record of this topic must have a key"),
        (b"", b"", "cannot be read: Could not read version from key's buffer."),
        (b"\x00\x63", b"", "cannot be read: unknown type 99"),
        (
            b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07",
            b"\x00\x63",
            "cannot be read: unknown version 99 of OffsetCommitValue",
        ),
        (
            b"\x00\x01\x00\x09g",
            None,
            (
                "cannot be read: Could not read record with version 1 from key's buffer due to: "
                "Error reading byte array of 9 byte(s): only 1 byte(s) available."
            ),
        ),
    ],
)
def test_a_record_that_cannot_be_read_says_why(key: bytes | None, value: bytes | None, reason: str) -> None:
    row = describe(key, value)
    assert row.get("type") is None
    assert row["metadata"] == reason


def test_random_bytes_are_described() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        describe(
            rng.choice((b"\x00\x01", b"\x00\x02", b"")) + rng.randbytes(rng.randrange(20)),
            rng.randbytes(rng.randrange(40)),
        )
        case()


# Through Spark


def _order(row: Row) -> tuple[str, int]:
    return row["file"], row["position"]


def test_views_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = golden.log_dir(golden.unpack(tmp_path, "4.4.0"))
    some = {"subscribe": "rolled,txn"}
    batches = spark.read.format("seglog").options(**some).option("view", "batches").load(str(path))
    assert batches.schema == BATCHES
    assert sorted((row.asDict() for row in batches.collect()), key=_order) == sorted(
        read("batches", path, some), key=_order
    )
    segments = spark.read.format("seglog").options(**some).option("view", "segments").load(str(path))
    assert segments.schema == SEGMENTS
    records = spark.read.format("seglog").options(**some).load(str(path)).count()
    control = batches.where("isControl").selectExpr("sum(recordsCount)").collect()[0][0]
    assert records == segments.selectExpr("sum(records)").collect()[0][0] - control
    offsets = spark.read.format("seglog").option("view", "group-offsets").load(str(path))
    assert offsets.schema == GROUP_OFFSETS
    latest: dict[tuple[object, ...], object] = {}
    for row in read("group-offsets", path):
        if row["type"] == "OffsetCommit":
            latest[(row["group"], row["topic"], row["partition"])] = None if row["isDeleted"] else row["offset"]
    assert {
        (row["group"], row["topic"], row["partition"]): row["offset"] for row in current_offsets(offsets).collect()
    } == {key: offset for key, offset in latest.items() if offset is not None}


def test_a_view_of_no_name(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"option view is 'batch': records or latest or .* or group-offsets"):
        spark.read.format("seglog").option("view", "batch").load(str(tmp_path))
