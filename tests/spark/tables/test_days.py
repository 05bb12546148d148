"""A table by day has each record once, and a query for one day reads only that day's files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from seglog.core.errors import InvalidConfigError
from seglog.records.record import NewRecord
from seglog.spark import table
from seglog.table import small_files
from seglog.table.building import update_table
from seglog.table.iceberg.log_table import LogTable
from tests.table.tables import TIME_MS, append, scanned, stored

pytestmark = pytest.mark.xdist_group("spark")
DAY_MS = 86_400_000
START = datetime.fromtimestamp(TIME_MS / 1000, UTC).replace(hour=0, minute=0)
DAYS = 10


def _append(log: Path, days: Iterable[int], partition: int = 0) -> None:
    """A record of each day, an hour after midnight or later."""
    start = int(START.timestamp() * 1000)
    times = [(day, start + day * DAY_MS + (1 + at % 20) * 3_600_000) for at, day in enumerate(days)]
    append(log, [NewRecord(b"v%d" % day, b"k", time) for day, time in times], partition=partition)


def _day(number: int) -> tuple[datetime, datetime]:
    return START + timedelta(days=number), START + timedelta(days=number + 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Records out of their order in time, in two commits; each has files of all days."""
    root = tmp_path_factory.mktemp("days")
    log, path = root / "log", root / "warehouse" / "flights"
    for partition in (0, 1):
        _append(log, (at * 7 % DAYS for at in range(40)), partition)
        done = update_table(log, path, topic="flights", partition_by="day", delta=True)
        assert (done.added_files, done.commits, done.files) == (DAYS, 1, DAYS * (partition + 1))
    return log, path


def test_each_file_has_one_day_and_readers_skip_the_others(made: tuple[Path, Path]) -> None:
    log, path = made
    assert stored(path).equals(scanned(log))
    since, until = _day(3)
    text = f"timestamp >= '{since.isoformat()}' and timestamp < '{until.isoformat()}'"
    with LogTable.open(path) as opened:
        scan = opened.iceberg.scan(row_filter=text)
        planned = [task.file.file_path.removeprefix("file://") for task in scan.plan_files()]
        assert scan.to_arrow().num_rows == 8
        assert str(opened.iceberg.spec().fields[0].transform) == "day"
    rows = pa.concat_tables([pq.read_table(file) for file in planned])
    assert (len(planned), rows.num_rows) == (2, 8)
    assert {one.date() for one in rows.column("timestamp").to_pylist()} == {since.date()}
    delta = DeltaTable(path / "data").to_pyarrow_dataset()
    assert delta.count_rows() == 80
    filtered = list(delta.get_fragments(filter=(pc.field("timestamp") >= since)))
    assert len(filtered) == 2 * (DAYS - 3)


def test_the_frame_of_a_day_has_its_files_only(spark: SparkSession, made: tuple[Path, Path], tmp_path: Path) -> None:
    log, path = made
    since, until = _day(3)
    frame = table(spark, path, since=since, until=until)
    assert (len(frame.inputFiles()), frame.count()) == (2, 8)
    assert {row[0] for row in frame.select("value").collect()} == {b"v3"}
    assert table(spark, path).where(f"timestamp >= '{since}' and timestamp < '{until}'").count() == 8
    assert table(spark, path, since=_day(DAYS)[0]).count() == 0
    assert len(table(spark, path, since=_day(8)[0]).inputFiles()) == 4
    with pytest.raises(InvalidConfigError, match="has no time zone"):
        table(spark, path, since=since.replace(tzinfo=None))
    other = tmp_path / "warehouse" / "flights"
    with LogTable.open_or_create(other, by_day=True):
        assert table(spark, other, since=since, until=until, tail=log).count() == 8  # all of it is tail


def test_small_files_of_a_day_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, path = tmp_path / "log", tmp_path / "warehouse" / "flights"
    monkeypatch.setattr(small_files, "FAN_IN", 3)
    for _ in range(3):
        _append(log, range(2))
        done = update_table(log, path, topic="flights", partition_by="day")
    assert (done.rewritten_files, done.files) == (6, 2)
    assert stored(path).equals(scanned(log))


def test_a_table_keeps_its_partitioning(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "warehouse" / "flights"
    _append(log, range(2))
    update_table(log, path, topic="flights")
    with pytest.raises(InvalidConfigError, match="is not partitioned by day, and stays so"):
        update_table(log, path, topic="flights", partition_by="day")
    by_day = tmp_path / "warehouse" / "days"
    update_table(log, by_day, topic="flights", partition_by="day")
    _append(log, range(2))
    assert update_table(log, by_day, topic="flights").added_files == 2
