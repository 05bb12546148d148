"""`scan` of files that change during the scan, its arguments, and the libraries that read its result."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from seglog.core.errors import (
    InvalidConfigError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from seglog.core.fs import OsFs
from seglog.records.batch import read_header
from seglog.records.column_decoding import Selection
from seglog.sources.scan import scan
from seglog.storage.offline.table_batches import FileRange, iter_table_batches
from tests.storage.offline.written_segments import numbered, offsets, write_segment

# Files that change meanwhile


def test_what_is_appended_later_is_not_read(partition: Path) -> None:
    reader = scan(partition, columns=("offset",))
    last = partition / "00000000000000000024.log"
    last.write_bytes(last.read_bytes() + b"".join(numbered(30, 5)))
    write_segment(partition, 35, numbered(35, 5))
    assert reader.read_all().num_rows == 30


def test_segments_that_compaction_joined_are_still_read(partition: Path) -> None:
    reader = scan(partition, columns=("offset",))
    assert reader.read_next_batch().num_rows == 12
    for base in (0, 12, 24):
        (partition / f"{base:020d}.log").unlink()
    write_segment(partition, 0, [*numbered(0, 3), *numbered(15, 3), *numbered(24, 6)])
    assert reader.read_all().column("offset").to_pylist() == [15, 16, 17, *range(24, 30)]


def test_what_retention_took_away_is_an_error(partition: Path) -> None:
    reader = scan(partition, columns=("offset",))
    reader.read_next_batch()
    for base in (0, 12):
        (partition / f"{base:020d}.log").unlink()
    with pytest.raises(OffsetOutOfRangeError, match="offsets 12 to 23 were deleted before they were read"):
        reader.read_all()


# Arguments


def test_arguments_that_cannot_be(partition: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidConfigError, match="no column 'size'"):
        scan(partition, columns=["size"])
    with pytest.raises(InvalidConfigError, match="isolation_level is read_uncommitted or read_committed"):
        scan(partition, isolation_level="serializable")
    with pytest.raises(InvalidConfigError, match="no time zone"):
        scan(partition, start=datetime.fromisoformat("2013-01-01"))
    with pytest.raises(InvalidConfigError, match="at least 1"):
        scan(partition, batch_rows=0)
    with pytest.raises(InvalidConfigError, match="neither a log directory"):
        scan(tmp_path / "empty")
    with pytest.raises(UnknownTopicError, match="no topic 'wep'"):
        scan(partition.parent, topics=["web", "wep"])
    with pytest.raises(InvalidConfigError, match="does not exist"):
        scan(tmp_path / "nowhere")


def test_a_file_alone_a_list_and_a_link(partition: Path, tmp_path: Path) -> None:
    alone = tmp_path / "00000000000000000012.log"
    shutil.copy(partition / alone.name, alone)
    (row, *_) = scan(alone).read_all().to_pylist()
    assert (row["topic"], row["partition"], row["offset"]) == (None, None, 12)
    assert offsets([partition / alone.name, alone, partition / alone.name]) == [*range(12, 24), *range(12, 24)]
    (tmp_path / "link").symlink_to(partition)
    assert offsets(tmp_path / "link") == list(range(30))
    assert offsets(str(partition), topics="web") == list(range(30))


def test_an_empty_log_has_a_schema(tmp_path: Path) -> None:
    write_segment(tmp_path / "web-0", 0, [])
    table = scan(tmp_path / "web-0").read_all()
    assert (table.num_rows, table.schema.names[0]) == (0, "key")


def test_a_stretch_is_what_a_spark_task_reads(partition: Path) -> None:
    path = partition / "00000000000000000012.log"
    size = read_header(path.read_bytes()).size
    found = iter_table_batches(OsFs(), FileRange(str(path), size, 3 * size), Selection(("offset",), low=16))
    assert pa.Table.from_batches(found).column("offset").to_pylist() == [16, 17, 18, 19, 20]


# Others read it


def test_duckdb_pandas_and_polars_take_it(partition: Path) -> None:
    database = duckdb.connect()
    database.register("web", scan(partition))
    found = database.execute('select count(*), sum("offset"), epoch_ms(min(timestamp)) from web').fetchall()
    assert found == [(30, sum(range(30)), 0)]
    frame = scan(partition).read_pandas()
    assert frame["offset"].sum() == sum(range(30))
    assert str(frame["timestamp"].dtype) == "datetime64[us, UTC]"
    columns: Any = scan(partition).read_all()
    assert pl.DataFrame(columns)["value"].to_list()[:2] == [b"0", b"1"]
