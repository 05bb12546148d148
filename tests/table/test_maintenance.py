"""Files become fewer and are deleted late; what a snapshot names is never deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seglog.core.errors import UnknownTableError
from seglog.core.fs import OsFs
from seglog.records.columns import SCHEMA
from seglog.table import maintenance, small_files
from seglog.table.columns.column_types import leaves
from seglog.table.files.record_files import write_records
from seglog.table.iceberg import log_table
from seglog.table.iceberg.catalogs import CatalogOptions
from seglog.table.iceberg.layout import DATA, METADATA, UNNAMED
from seglog.table.iceberg.log_table import LogTable
from seglog.table.iceberg.positions import Position, Positions
from seglog.table.maintenance import DATA_GRACE_MS, METADATA_GRACE_MS, maintain, rewrite_small_files, sweep
from tests.kit.manual_clock import ManualClock
from tests.kit.rest_catalog import TOKEN, RestCatalogServer

FS = OsFs()


def _batch(partition: int, first: int, count: int = 3) -> pa.RecordBatch:
    rows = [
        {"key": b"k%d" % at, "value": b"v" * 20, "topic": "t", "partition": partition, "offset": at, "timestampType": 0}
        for at in range(first, first + count)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA).to_batches()[0]


def add(table: LogTable, number: int) -> None:
    """The commit of that number: three records of partitions 1 and 0 each."""
    written = write_records(FS, table.path.data, [_batch(0, number * 3), _batch(1, number * 3)], table.form)
    assert written is not None
    end = Position(number * 3 + 3, 0)
    with table.locked():
        positions = (table.positions() or Positions(topic="t")).advanced({0: end, 1: end})
        table.append([written.path], positions, {0: number * 3, 1: number * 3})


@pytest.fixture
def table(tmp_path: Path) -> Iterator[LogTable]:
    with LogTable.open_or_create(tmp_path / "warehouse" / "t") as opened:
        yield opened


def offsets(table: LogTable) -> list[tuple[int, int]]:
    """Of all records, file by file."""
    found = table.snapshot()
    assert found is not None
    rows = [row for file in found.files for row in pq.read_table(file, columns=["partition", "offset"]).to_pylist()]
    return [(row["partition"], row["offset"]) for row in rows]


def test_small_files_become_one_that_is_sorted(table: LogTable) -> None:
    for number in range(small_files.FAN_IN):
        add(table, number)
    before = table.snapshot()
    assert before is not None
    with table.locked():
        assert rewrite_small_files(FS, table) == small_files.FAN_IN
        assert rewrite_small_files(FS, table) == 0
    after = table.snapshot()
    assert after is not None
    assert (len(after.files), after.records, after.positions) == (1, before.records, before.positions)
    assert offsets(table) == [(partition, at) for partition in (0, 1) for at in range(3 * small_files.FAN_IN)]
    assert all(Path(file).exists() for file in before.files)  # a query that began before still reads them


def test_rewriting_stops_before_memory_is_full(table: LogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(small_files.FAN_IN):
        add(table, number)
    monkeypatch.setattr(maintenance, "_MOST_DECODED", 3000)
    with table.locked():
        assert 1 < rewrite_small_files(FS, table) < small_files.FAN_IN
    assert sorted(offsets(table)) == [(partition, at) for partition in (0, 1) for at in range(3 * small_files.FAN_IN)]


def test_a_file_without_a_name_goes_after_the_grace_time(table: LogTable) -> None:
    clock = ManualClock()
    add(table, 0)
    orphan = write_records(FS, table.path.data, [_batch(0, 100)], table.form)  # of a job that died
    assert orphan is not None
    foreign = Path(table.path.data, "_delta_log")
    foreign.mkdir()
    with table.locked():
        assert sweep(FS, table, clock) == 0
        clock.advance(DATA_GRACE_MS - 1)
        assert sweep(FS, table, clock) == 0
        clock.advance(1)
        assert sweep(FS, table, clock) == 1
    assert not Path(orphan.path).exists()
    assert foreign.exists()
    assert len(offsets(table)) == 6


def test_an_old_file_that_was_just_replaced_stays_for_the_grace_time(
    table: LogTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_table, "KEPT_SNAPSHOTS", 1)
    clock = ManualClock()
    for number in range(small_files.FAN_IN):
        add(table, number)
    before = table.snapshot()
    assert before is not None
    clock.advance(10 * DATA_GRACE_MS)  # they are old
    with table.locked():
        assert rewrite_small_files(FS, table) == small_files.FAN_IN
    add(table, small_files.FAN_IN)  # the snapshot that names them is not kept
    with table.locked():
        assert sweep(FS, table, clock) == 0
        clock.advance(METADATA_GRACE_MS)
        assert sweep(FS, table, clock) > small_files.FAN_IN  # manifests of expired snapshots
        assert all(Path(file).exists() for file in before.files)
        clock.advance(DATA_GRACE_MS)
        assert sweep(FS, table, clock) == small_files.FAN_IN
    assert not any(Path(file).exists() for file in before.files)
    assert len(offsets(table)) == 6 * small_files.FAN_IN + 6


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version":1}', b"[]"])
def test_lost_notes_begin_the_grace_time_anew(table: LogTable, damage: bytes) -> None:
    clock = ManualClock()
    add(table, 0)
    write_records(FS, table.path.data, [_batch(0, 100)], table.form)
    with table.locked():
        sweep(FS, table, clock)
        Path(table.path.own, UNNAMED).write_bytes(damage)
        clock.advance(DATA_GRACE_MS)
        assert sweep(FS, table, clock) == 0
        clock.advance(DATA_GRACE_MS)
        assert sweep(FS, table, clock) == 1


def test_a_sweep_waits_for_the_one_before(table: LogTable) -> None:
    clock = ManualClock()
    add(table, 0)
    with table.locked():
        maintain(FS, table, clock)
        write_records(FS, table.path.data, [_batch(0, 100)], table.form)
        clock.advance(maintenance.SWEEP_MS - 1)
        maintain(FS, table, clock)
        assert maintenance.read_unnamed(FS, table).since == {}
        clock.advance(1)
        maintain(FS, table, clock)
        assert len(maintenance.read_unnamed(FS, table).since) == 1


def test_what_a_table_keeps_is_bounded(table: LogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots, manifests, metadata files and their sizes, over many commits."""
    monkeypatch.setattr(log_table, "KEPT_SNAPSHOTS", 5)
    clock = ManualClock()
    sizes = []
    for number in range(50):
        add(table, number)
        with table.locked():
            maintain(FS, table, clock)
        clock.advance(METADATA_GRACE_MS)
        snapshot = table.iceberg.current_snapshot()
        assert snapshot is not None
        assert len(snapshot.manifests(table.iceberg.io)) <= 40
        sizes.append(Path(table.iceberg.metadata_location.removeprefix("file://")).stat().st_size)
    assert len(table.iceberg.metadata.snapshots) == 5
    assert max(sizes[30:]) < 1.1 * max(sizes[10:25])
    assert len(list(Path(table.path.root, METADATA).glob("*.metadata.json"))) == 11
    assert len(list(Path(table.path.root, METADATA).iterdir())) < 120
    assert len(list(Path(table.path.root, DATA).iterdir())) < 60
    assert sorted(offsets(table)) == [(partition, at) for partition in (0, 1) for at in range(150)]


def _grown(number: int) -> pa.Schema:
    return SCHEMA.set(1, pa.field("value", pa.struct([(f"f{at}", pa.int32()) for at in range(number + 1)])))


@pytest.mark.parametrize("limit", ["KEPT_SNAPSHOTS", "KEPT_SCHEMAS"])
def test_schemas_go_with_the_snapshots_that_had_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A source whose schema changes in every run; each load of the table reads all schemas."""
    monkeypatch.setattr(log_table, limit, 3)
    most = 0
    seen = []
    with LogTable.open_or_create(tmp_path / "warehouse" / "t", columns=_grown(0)) as table:
        for number in range(3 * maintenance.ENOUGH_SCHEMAS):
            with table.locked():
                table.evolve(_grown(number), None)
                table.append([], Positions(topic="t", partitions={0: Position(number)}), {0: 0})
                maintain(FS, table, ManualClock())
                current = table.iceberg.current_snapshot()
                assert current is not None
                seen.append(current.snapshot_id)
                if number == 1:
                    table.iceberg.manage_snapshots().create_tag(current.snapshot_id, "old").commit()
            most = max(most, len(table.iceberg.schemas()))
        assert most <= 3 + 1 + maintenance.ENOUGH_SCHEMAS  # one is the tag's
        kept = [one.snapshot_id for one in table.iceberg.metadata.snapshots]
        assert sorted(kept) == sorted([seen[1], *seen[-3:]])
        for number in kept:
            found = table.iceberg.scan(snapshot_id=number).to_arrow()
            assert len(leaves(found.schema.field("value").type, "value")) == seen.index(number) + 1
            assert table.snapshot(number) is not None
        with pytest.raises(UnknownTableError, match=f"has no snapshot {seen[2]} now"):
            table.snapshot(seen[2])
    with LogTable.open(tmp_path / "warehouse" / "t") as table:
        assert len(leaves(table.form.schema.field("value").type, "value")) == 3 * maintenance.ENOUGH_SCHEMAS


def test_a_catalog_that_cannot_remove_schemas_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "ENOUGH_SCHEMAS", 1)
    with RestCatalogServer(tmp_path, {}) as server:
        catalog = CatalogOptions(server.uri, {"token": TOKEN})
        with LogTable.open_or_create(tmp_path / "w" / "t", columns=_grown(0), catalog=catalog) as table:
            for number in (1, 2):
                with table.locked():
                    table.evolve(_grown(number), None)
            server.unknown_updates = {"remove-schemas"}
            with table.locked():
                maintain(FS, table, ManualClock())
                assert len(table.unused_schemas) == 2
            server.unknown_updates = ()
            with table.locked():
                maintain(FS, table, ManualClock())
            assert not table.unused_schemas
