"""The view ``latest`` of directories, held to dictionaries: of Kafka's consumer, and of records before compaction."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_seglog import DefaultSource
from seglog.core.errors import DataLossError, InvalidConfigError, InvalidRecordError, OffsetOutOfRangeError
from seglog.core.ground import Ground
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.records.record import NewRecord
from seglog.sources.ranges import OffsetRange
from seglog.spark.read.batch_reader import SeglogReader
from seglog.storage.compaction import log_cleaner
from seglog.storage.compaction.round import COMPILED
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import CLEANER_OFFSETS
from tests import golden
from tests.cases import case
from tests.kafka.jars import KafkaVersion
from tests.kit.manual_clock import ManualClock
from tests.sources.latest.latest_reading import Newest, by_dictionary, latest_in
from tests.spark.logs import write_partition
from tests.storage.compaction.compacted import START_MS, Fact, Writer, facts, values

T0 = TopicPartition("t", 0)
TOPIC = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 1500,
    "segment.index.bytes": 600,
    "index.interval.bytes": 300,
    "file.delete.delay.ms": 0,
    "message.timestamp.after.max.ms": MAX_INT64,
}


ISOLATIONS: Final[Sequence[Literal["read_uncommitted", "read_committed"]]] = ("read_uncommitted", "read_committed")


@pytest.mark.parametrize("version", ["4.4.0", "2.8.2"])
def test_kafkas_directories_have_what_its_consumer_has_in_a_dictionary(tmp_path: Path, version: KafkaVersion) -> None:
    """Formats v0 to v2, all codecs, transactions, tombstones, compacted topics."""
    root = golden.unpack(tmp_path, version)
    compacted = 0
    for name, isolation in product(golden.partitions(root), ISOLATIONS):
        topic, number = name.rsplit("-", 1)
        chosen = {"assign": json.dumps({topic: [int(number)]}), "isolationLevel": isolation, "until": "logEnd"}
        try:
            records = golden.expected_records(root, name, isolation=isolation)
        except FileNotFoundError:
            continue
        keyless = next((one.offset for one in records if one.key is None), None)
        if keyless is not None:
            with pytest.raises(InvalidRecordError, match=f"{name}, offset {keyless}: a record without a key"):
                latest_in(golden.log_dir(root), **chosen)
            continue
        wanted = by_dictionary(records)
        assert latest_in(golden.log_dir(root), **chosen) == wanted
        if isolation == "read_committed":  # which records there are does not change how they are spilled
            assert latest_in(golden.log_dir(root), **chosen, maxMemoryPerTask="1k") == wanted
        compacted += "compacted" in name and bool(wanted)
        case()
    assert compacted


class Compacted:
    """A topic of random batches that the engine compacts; `facts` are the records that it had before."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.clock = ManualClock(START_MS)
        self.facts: dict[int, Fact] = {}
        self.point = self.active = self.end = 0
        with self.open() as directory:
            directory.create_topic("t", 1, TOPIC)

    def open(self) -> LogDir:
        return LogDir.open(self.path, ground=Ground(clock=self.clock))

    def write(self, steps: int) -> None:
        with self.open() as directory:
            log = directory.log("t")
            writer = Writer(log, self.rng)
            writer.sync()
            writer.write(steps, legacy=True)
            writer.end_all()
            for fact in facts(log):
                self.facts.setdefault(fact.record.offset, fact)
            self.active, self.end = log.active.base_offset, log.log_end_offset

    def roll_and_compact(self, *, checkpoint: bool = True) -> None:
        with self.open() as directory:
            log = directory.log("t")
            log.roll()
            part = log_cleaner.cleanable(log, directory.checkpoints.cleaner_offsets.get(T0))
            stats = log_cleaner.compact(log, first_dirty=part.first_dirty, engine=COMPILED, in_child=False)
            self.active = log.active.base_offset
            if checkpoint:
                directory.checkpoints.note_cleaned(log, stats.end_offset)
                self.point = stats.end_offset

    def wanted(self, until: int) -> dict[bytes, bytes]:
        return values(fact for offset, fact in sorted(self.facts.items()) if offset < until)

    def read(self, until: int, **options: str) -> dict[bytes, bytes]:
        ending = json.dumps({"t": {"0": until}})
        found = latest_in(self.path, endingOffsets=ending, isolationLevel="read_committed", **options)
        return {key: value for (_, key), (_, value) in found.items()}


@pytest.mark.parametrize("seed", range(4))
def test_as_of_every_offset_the_answer_is_that_before_compaction_or_an_error(tmp_path: Path, seed: int) -> None:
    log = Compacted(tmp_path / "data", seed)
    log.write(60)
    log.roll_and_compact()
    log.write(60)
    assert 0 < log.point < log.active < log.end
    for until in {*range(0, log.end, 3), log.point, log.point - 1, log.active, log.end}:
        if until >= log.point:
            # Rows are spilled one by one, by the dozen, or not at all.
            memory = log.rng.choices(("700", "4k", "128m"), (1, 2, 7))[0]
            assert log.read(until, maxMemoryPerTask=memory) == log.wanted(until)
        else:
            match = rf"newest values of t-0 as of offset {until} may be gone: .* is compacted up to offset {log.point}$"
            with pytest.raises(OffsetOutOfRangeError, match=match):
                log.read(until)
        case()


def read_after(path: Path, change: Callable[[], None], **options: str) -> Newest:
    """The rows of tasks that were planned before ``change()`` and run after it."""
    source = DefaultSource({"path": str(path), "view": "latest", **options})
    reader = source.reader(schema=source.schema())
    planned = reader.partitions()
    change()
    found: Newest = {}
    for partition in planned:
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            found |= {(T0, row["key"]): (row["offset"], row["value"]) for row in batch.to_pylist()}
    return found


def test_a_compaction_beyond_the_planned_end_is_noticed(tmp_path: Path) -> None:
    log = Compacted(tmp_path / "data", 5)
    log.write(60)

    def change() -> None:
        log.write(40)
        log.roll_and_compact()

    with pytest.raises(
        OffsetOutOfRangeError, match=r"gone since .* is compacted up to offset \d+; call load\(\) again"
    ):
        read_after(log.path, change)


def test_a_compaction_below_the_planned_end_changes_nothing(tmp_path: Path) -> None:
    log = Compacted(tmp_path / "data", 6)
    log.write(60)
    wanted = log.wanted(log.end)

    found = read_after(log.path, log.roll_and_compact, isolationLevel="read_committed")
    assert {key: value for (_, key), (_, value) in found.items()} == wanted


def test_a_compaction_that_has_not_reached_the_checkpoint_is_noticed(tmp_path: Path) -> None:
    log = Compacted(tmp_path / "data", 7)
    log.write(60)

    def change() -> None:
        log.write(40)
        log.roll_and_compact(checkpoint=False)
        for replaced in (log.path / "t-0").glob("*.log.deleted"):
            replaced.unlink()

    with pytest.raises(OffsetOutOfRangeError, match=r"\.log was compacted while it was read; call load\(\) again"):
        read_after(log.path, change)


def test_files_of_a_round_that_is_under_way_are_noticed(tmp_path: Path) -> None:
    log = Compacted(tmp_path / "data", 8)
    log.write(60)
    (log.path / "t-0" / f"{0:020d}.log.cleaned").touch()
    assert log.read(log.end) == log.wanted(log.end)
    with pytest.raises(OffsetOutOfRangeError, match=r"segments of .*t-0 are being replaced"):
        log.read(log.active - 1)


def test_a_partition_without_its_log_directory_is_read_to_its_end_only(tmp_path: Path) -> None:
    log = Compacted(tmp_path / "data", 9)
    log.write(60)
    shutil.copytree(log.path / "t-0", tmp_path / "copy" / "t-0")
    copy = {"path": str(tmp_path / "copy" / "t-0"), "isolationLevel": "read_committed"}
    found = latest_in(tmp_path / "copy" / "t-0", isolationLevel=copy["isolationLevel"])
    assert {key: value for (_, key), (_, value) in found.items()} == log.wanted(log.end)
    with pytest.raises(OffsetOutOfRangeError, match=f"there is no {CLEANER_OFFSETS}"):
        latest_in(tmp_path / "copy" / "t-0", endingTimestamp=str(START_MS + 1))


# Options and columns

RECORDS: Sequence[NewRecord] = [
    NewRecord(b'{"n": 1}', b"a", 1_000, (("h", b"1"),)),
    NewRecord(b'{"n": 2}', b"b", 2_000),
    NewRecord(b'{"n": 3}', b"a", 3_000, (("h", b"3"),)),
    NewRecord(None, b"b", 4_000),
    NewRecord(b'{"n": 5}', b"c", 5_000),
]


def rows(**options: str) -> list[dict[str, object]]:
    source = DefaultSource({"view": "latest", **options})
    reader = source.reader(schema=source.schema())
    found: list[dict[str, object]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            found += batch.to_pylist()
    return found


def test_columns_headers_keys_and_times_are_those_of_records(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [RECORDS[:2], RECORDS[2:]])
    path = str(tmp_path)
    assert rows(path=path, columns="offset") == [{"offset": 2}, {"offset": 4}]
    (a, _) = rows(path=path, includeHeaders="true")
    assert (a["key"], a["timestampType"], a["headers"]) == (b"a", 0, [{"key": "h", "value": b"3"}])
    assert rows(path=path, columns="value", keyEquals="a") == [{"value": b'{"n": 3}'}]
    assert rows(path=path, columns="offset", startingOffsets='{"t": {"0": 3}}') == [{"offset": 4}]
    assert rows(path=path, columns="offset", endingTimestamp="3000") == [{"offset": 0}, {"offset": 1}]


def test_values_are_decoded_once_they_are_the_newest(tmp_path: Path) -> None:
    broken = NewRecord(b"{", b"a", 500)
    write_partition(tmp_path / "t-0", [[broken, *RECORDS]])
    found = rows(path=str(tmp_path), valueFormat="json", valueSchema="n int", columns="key,value")
    assert found == [{"key": b"a", "value": {"n": 3}}, {"key": b"c", "value": {"n": 5}}]


def test_parts_have_the_newest_of_their_offsets_and_tombstones(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [[one] for one in RECORDS])
    for most, offsets in ("5", [2, 3, 4]), ("3", [0, 1, 2, 3, 4]):
        chosen = {"columns": "offset,isTombstone", "maxRecordsPerPartition": most}
        found = rows(path=str(tmp_path), view="latest-parts", **chosen)
        assert [(row["offset"], row["isTombstone"]) for row in found] == [(offset, offset == 3) for offset in offsets]


def test_a_damaged_record_is_never_passed_over(tmp_path: Path) -> None:
    log = write_partition(tmp_path / "t-0", [[one] for one in RECORDS])
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    with pytest.raises(Exception, match="CRC"):
        rows(path=str(tmp_path), mode="permissive", until="logEnd")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"includeControl": "true"}, "option includeControl: a transaction's marker has no key; the view is latest"),
        (
            {"maxMemoryPerTask": "2g"},
            "option maxMemoryPerTask is '2g': it must be a size above 0, as in 134217728 or 128m",
        ),
        (
            {"view": "latest-parts", "keyFormat": "json", "keySchema": "n int"},
            "option keyFormat: the view latest-parts has keys as bytes",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    write_partition(tmp_path / "t-0", [RECORDS])
    with pytest.raises(InvalidConfigError, match=re.escape(reason)):
        rows(path=str(tmp_path), **options)


def test_a_stream_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = DefaultSource({"path": str(tmp_path), "view": "latest"})
    with pytest.raises(InvalidConfigError, match="view is 'latest': a key's newest value is known only where the log"):
        source.streamReader(source.schema())


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_deleted_under_a_query(
    tmp_path: Path, fails: str, planned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """While it is planned, or before its task has checked what compaction did meanwhile."""
    for topic in ("t-0", "u-0"):
        write_partition(tmp_path / topic, [[NewRecord(b"v", b"%d" % number) for number in range(5)]])
    source = DefaultSource({"view": "latest", "path": str(tmp_path), "failOnDataLoss": fails})
    reader = source.reader(schema=source.schema())
    assert isinstance(reader, SeglogReader)
    extents = reader.extents()
    ranges = {extent.topic_partition: OffsetRange(0, 5) for extent in extents}
    tasks = reader.plan(extents, ranges) if planned else ()
    shutil.rmtree(tmp_path / "t-0")
    tasks = tasks or reader.plan(extents, ranges)
    found: list[str] = []
    lost = pytest.raises(DataLossError, match="t-0") if fails == "true" else nullcontext()
    with lost:
        for task in tasks:
            for batch in reader.read(InputPartition((task,))):
                found += batch.column("topic").to_pylist()
    if fails == "false":
        assert found == ["u"] * 5
        assert "t-0 was deleted while its newest values were read" in caplog.text
