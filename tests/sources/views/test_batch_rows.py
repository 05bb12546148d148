"""The views of batches and segments against `seglog dump` and `seglog ls`."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql.types import StructType

from pyspark_seglog import DefaultSource
from seglog.core.errors import DataLossError, InvalidConfigError
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.formats.checkpoints import read_offsets, write_partition_metadata
from seglog.storage.formats.paths import LOG_START_OFFSETS
from tests import golden
from tests.cases import case
from tests.cli.run import Run, run_here
from tests.kafka.jars import CURRENT, OLD, KafkaVersion
from tests.sources.views.view_reading import Row, read, reader
from tests.spark.logs import write_partition
from tests.storage.offline.verify.verified import batches as entries
from tests.storage.offline.verify.verified import flip, make_dir

pytestmark = pytest.mark.xdist_group("spark-jobs")

LOG = f"{0:020d}.log"


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


@pytest.fixture(scope="module", params=[CURRENT, OLD])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    version: KafkaVersion = request.param
    return golden.unpack(tmp_path_factory.mktemp("golden"), version)


# Batches


def as_dumped(row: Row) -> Row:
    """A row as `seglog dump --json` shows a batch, which is held to Kafka's DumpLogSegments."""
    shared = (
        "file", "baseOffset", "lastOffset", "baseSequence", "lastSequence", "producerId", "producerEpoch",
        "partitionLeaderEpoch", "isTransactional", "isControl", "deleteHorizonMs", "position", "timestampType",
        "maxTimestamp", "size", "magic", "codec", "crc",
    )  # fmt: skip
    return {name: row[name] for name in shared} | {"count": row["recordsCount"], "isValid": row["verdict"] == "ok"}


def test_batches_equal_those_of_a_dump(run: Run, root: Path) -> None:
    names = [name for name in golden.directories(root) if not name.startswith("__")]
    expected = []
    for name in names:
        logs = sorted((golden.log_dir(root) / name).glob("*.log"))
        expected += run("dump", "--json", *logs).objects
    starts = read_offsets(OsFs(), str(golden.log_dir(root) / LOG_START_OFFSETS))
    for topic, partition in starts:  # what was deleted is no part of the log, though a dump shows what is left of it
        name = f"{topic}-{partition}"
        expected = [
            row
            for row in expected
            if Path(row["file"]).parent.name != name or row["lastOffset"] >= starts[TopicPartition(topic, partition)]
        ]
    found = read("batches", golden.log_dir(root))
    order = sorted(found, key=lambda row: (row["file"], row["position"]))
    assert [as_dumped(row) for row in order] == sorted(expected, key=lambda row: (row["file"], row["position"]))
    assert all(row["crc"] == row["computedCrc"] and row["reason"] is None for row in found)
    for row in found:
        assert (row["topic"], row["partition"]) == (Path(row["file"]).parent.name.rsplit("-", 1)[0], row["partition"])
        if row["magic"] == 2:
            assert row["lastOffset"] == row["baseOffset"] + row["lastOffsetDelta"]
            assert row["baseTimestamp"] <= row["maxTimestamp"] or row["deleteHorizonMs"] is not None


@pytest.mark.parametrize("kind", ["plain", "transactions", "rolled"])
def test_damage_is_a_row_and_ends_nothing(tmp_path: Path, kind: str) -> None:
    """Flip bits anywhere: the rows still cover the files without gaps, and all valid batches are unchanged."""
    make_dir(tmp_path / "sound", kind, size=20_000)
    sound = {
        (row["file"].removeprefix(str(tmp_path / "sound")), row["position"]): row
        for row in read("batches", tmp_path / "sound")
    }
    rng = random.Random(kind)
    verdicts: dict[str, int] = {}
    for number in range(30):
        root = tmp_path / f"{kind}{number}"
        shutil.copytree(tmp_path / "sound", root)
        log = rng.choice(sorted((root / "t-0").glob("*.log")))
        data = log.read_bytes()
        entry, last = rng.choice(entries(data)), entries(data)[-1].position
        # of half the cases in the first bytes, where sizes and formats are
        position = entry.position + rng.randrange(rng.choice((24, entry.size)))
        log.write_bytes(flip(data, position, rng.randrange(8)))
        rows = read("batches", root)
        for file in sorted((root / "t-0").glob("*.log")):
            mine = sorted((row for row in rows if row["file"] == str(file)), key=lambda row: row["position"])
            at = 0
            for row in mine:
                assert row["position"] == at, (number, position)
                at += row["size"]
            if file != log or entry.position != last:  # of the last batch a part may be missing: that is the end
                assert at == file.stat().st_size, (number, position)
        changed = [
            row for row in rows if not _same(row, sound.get((row["file"].removeprefix(str(root)), row["position"])))
        ]
        assert len(changed) <= 2, changed
        for row in changed:
            verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
            assert (row["verdict"] == "ok") == (row["reason"] is None)
            assert (row["verdict"] == "hole") == (row["magic"] is None)
        case()
    assert verdicts["crc"] > 5, verdicts
    assert verdicts["hole"] > 1, verdicts


def _place(row: Row) -> tuple[str, int]:
    return Path(row["file"]).name, row["position"]


def _same(row: Row, other: Row | None) -> bool:
    return other is not None and {**row, "file": ""} == {**other, "file": ""}


def test_a_half_written_batch_is_the_end_of_the_last_segment_only(tmp_path: Path) -> None:
    partition = make_dir(tmp_path / "logs", "rolled", size=20_000)
    whole = read("batches", tmp_path / "logs")
    first, *_, last = sorted(partition.glob("*.log"))
    data = last.read_bytes()
    large = max(entries(data), key=lambda entry: entry.size).position
    half = data[large : large + 200]
    for tail in (bytes(5000), half):
        last.write_bytes(data + tail)
        assert read("batches", tmp_path / "logs") == whole
        assert sum(row["holeBytes"] for row in read("segments", tmp_path / "logs")) == 0
    last.write_bytes(data)
    size = first.stat().st_size
    first.write_bytes(first.read_bytes() + half)
    (hole,) = [row for row in read("batches", tmp_path / "logs") if row["verdict"] != "ok"]
    assert (hole["file"], hole["position"], hole["size"], hole["verdict"]) == (str(first), size, 200, "hole")
    assert hole["reason"].endswith("200 are left; no batch follows")


def test_a_wrong_crc_says_both(tmp_path: Path) -> None:
    log = make_dir(tmp_path / "logs", size=20_000) / LOG
    data = log.read_bytes()
    entry = entries(data)[2]
    log.write_bytes(flip(data, entry.position + 70, 0))
    row = read("batches", tmp_path / "logs")[2]
    assert (row["position"], row["verdict"]) == (entry.position, "crc")
    assert row["reason"] == f"stored CRC {row['crc']} is not the computed {row['computedCrc']}"


def test_ranges_are_those_of_records(tmp_path: Path) -> None:
    make_dir(tmp_path / "logs", "rolled")
    whole = read("batches", tmp_path / "logs")
    end = whole[-1]["lastOffset"] + 1
    rng = random.Random(0)
    for _ in range(40):
        first, last = sorted(rng.sample(range(end), 2))
        options = {
            "startingOffsets": json.dumps({"t": {"0": first}}),
            "endingOffsets": json.dumps({"t": {"0": last}}),
            "minPartitions": str(rng.randrange(1, 9)),
            "maxBytesPerPartition": str(rng.choice((3000, 9000, 1 << 30))),
            "maxRecordsPerPartition": str(rng.choice((1, 7, 1000))),
        }
        expected = [row for row in whole if row["lastOffset"] >= first and row["baseOffset"] < last]
        assert read("batches", tmp_path / "logs", options) == expected, options
        case()


def test_one_partition_is_many_tasks(tmp_path: Path) -> None:
    make_dir(tmp_path / "logs")
    made, _ = reader("batches", tmp_path / "logs", {"minPartitions": "6"})
    assert len(made.partitions()) >= 5


def test_a_batch_larger_than_a_chunk(tmp_path: Path) -> None:
    partition = tmp_path / "big-0"
    partition.mkdir()
    records = [NewRecord(b"v" * (5 << 20), timestamp=1)]
    sizes = [len(encode_batch(records, base_offset=at)) for at in range(2)]
    (partition / LOG).write_bytes(b"".join(encode_batch(records, base_offset=at) for at in range(2)))
    rows = read("batches", tmp_path / "big-0")
    assert [(row["position"], row["size"], row["verdict"]) for row in rows] == [
        (0, sizes[0], "ok"),
        (sizes[0], sizes[1], "ok"),
    ]


def test_columns_that_are_not_asked_for_are_not_made(tmp_path: Path) -> None:
    make_dir(tmp_path / "logs")
    rows = read("batches", tmp_path / "logs", {"columns": "baseOffset,size"})
    assert rows == [{name: row[name] for name in ("baseOffset", "size")} for row in read("batches", tmp_path / "logs")]
    with pytest.raises(InvalidConfigError, match=r"view batches has no column 'value'; it has topic, partition, "):
        reader("batches", tmp_path / "logs", {"columns": "value"})
    source = DefaultSource({"path": str(tmp_path / "logs"), "view": "batches"})
    with pytest.raises(InvalidConfigError, match="column size of view batches is bigint, not int"):
        source.reader(schema=StructType().add("size", "integer"))


def test_nothing_to_read(tmp_path: Path) -> None:
    make_dir(tmp_path / "logs")
    options = {"startingOffsets": '{"t":{"0":3}}', "endingOffsets": '{"t":{"0":3}}'}
    for view in ("batches", "segments"):
        made, _ = reader(view, tmp_path / "logs", options)
        assert list(made.partitions()) == []


def test_a_topic_that_was_created_again(tmp_path: Path) -> None:
    partition = tmp_path / "t-0"
    for number in (1, 2):
        write_partition(partition, [[NewRecord(b"v")]] * number)
        write_partition_metadata(OsFs(), str(partition), UUID(int=number << 64))
        if number == 1:
            made, _ = reader("batches", tmp_path)
            tasks = list(made.partitions())
            assert len([list(made.read(task)) for task in tasks]) == 1
    with pytest.raises(DataLossError, match="topic t was deleted and created again since the query was planned"):
        list(made.read(tasks[0]))


# Segments


def test_segments_equal_those_of_ls(run: Run, root: Path) -> None:
    def key(row: Row) -> tuple[str, int, int]:
        return row["topic"], row["partition"], row["baseOffset"]

    (listed,) = run("ls", "--json", golden.log_dir(root)).objects
    expected = [
        {"topic": partition["topic"], "partition": partition["partition"], **segment}
        for partition in listed["partitions"]
        for segment in partition["segments"]
        if not partition["topic"].startswith("__")
    ]
    found = sorted(read("segments", golden.log_dir(root)), key=key)
    for row, other in zip(found, sorted(expected, key=key), strict=True):
        same = ("baseOffset", "batches", "size", "formats", "codecs")
        assert {name: row[name] for name in same} == {name: other[name] for name in same}
        assert row["holeBytes"] == 0
        if other["batches"]:
            assert row["lastOffset"] + 1 == other["nextOffset"]
            latest = row["maxTimestamp"]
            assert (latest and round(latest.timestamp() * 1000)) == (other["maxTimestamp"] if latest else None)
            assert (latest is None) == (other["maxTimestamp"] in (None, -1))
        if row["records"] is not None:
            assert row["records"] == other["records"]
        paths = Path(row["file"])
        assert row["indexSize"] == paths.with_suffix(".index").stat().st_size
        assert row["timeIndexSize"] == paths.with_suffix(".timeindex").stat().st_size
        assert (row["txnIndexSize"] is not None) == paths.with_suffix(".txnindex").exists()
    assert sum(row["isLast"] for row in found) == len({key(row)[:2] for row in found})


def test_only_segments_in_the_range(tmp_path: Path) -> None:
    make_dir(tmp_path / "logs", "rolled")
    whole = read("segments", tmp_path / "logs")
    assert len(whole) > 3
    second = whole[1]
    options = {
        "startingOffsets": json.dumps({"t": {"0": second["baseOffset"] + 1}}),
        "endingOffsets": json.dumps({"t": {"0": second["lastOffset"]}}),
    }
    assert read("segments", tmp_path / "logs", options) == [second]


def test_holes_are_counted(tmp_path: Path) -> None:
    log = make_dir(tmp_path / "logs", size=20_000) / LOG
    data = log.read_bytes()
    entry = entries(data)[2]
    log.write_bytes(data[: entry.position] + bytes(entry.size) + data[entry.position + entry.size :])
    (row,) = read("segments", tmp_path / "logs")
    assert (row["holeBytes"], row["batches"]) == (entry.size, len(entries(data)) - 1)
