"""Files by day have each record once, each file of one day, and as few files as the days and their bytes allow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.records.columns import SCHEMA
from seglog.table.columns.column_types import arrow_schema, iceberg_schema
from seglog.table.files import day_files
from seglog.table.files.day_files import by_day, write_days
from seglog.table.files.record_files import FileForm

_FORM = FileForm(arrow_schema(iceberg_schema(SCHEMA)), by_day=True)
_TIMES = st.one_of(st.none(), st.integers(-3 * 86_400_000, 3 * 86_400_000))


def _batch(times_ms: Sequence[int | None], first: int = 0) -> pa.RecordBatch:
    rows = [
        {"topic": "t", "partition": 0, "offset": first + at, "timestamp": None if ms is None else _at(ms)}
        for at, ms in enumerate(times_ms)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA).to_batches()[0]


def _at(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


@given(st.lists(_TIMES, min_size=1, max_size=30))
def test_splits_a_batch_in_its_order(times: list[int | None]) -> None:
    batch = _batch(times)
    parts = list(by_day(batch))
    assert len({day for day, _ in parts}) == len(parts)
    for day, part in parts:
        offsets = part.column("offset").to_pylist()
        assert offsets == [at for at, ms in enumerate(times) if (None if ms is None else ms // 86_400_000) == day]
    assert sum(part.num_rows for _, part in parts) == batch.num_rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=15)
@given(st.lists(st.lists(_TIMES, min_size=1, max_size=8), min_size=1, max_size=5), st.sampled_from([1, 300, 1 << 20]))
def test_files_have_one_day_each_and_all_records(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int | None]], most: int
) -> None:
    path = tmp_path_factory.mktemp("days")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(day_files, "MOST_WAITING", most)
        firsts = [sum(len(one) for one in batches[:at]) for at in range(len(batches))]
        made = [_batch(times, first) for times, first in zip(batches, firsts, strict=True)]
        written = write_days(OsFs(), str(path), made, _FORM)
    found: list[int] = []
    for one in written:
        rows = pq.read_table(one.path).to_pylist()
        assert len({None if row["timestamp"] is None else row["timestamp"].date() for row in rows}) == 1
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(offsets)
        found += offsets
    assert sorted(found) == list(range(sum(map(len, batches))))
    days = {None if ms is None else _at(ms).date() for times in batches for ms in times}
    if most == 1 << 20:
        assert len(written) == len(days)


def test_too_many_days_are_refused_by_the_place_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day_files, "MOST_DAYS", 3)
    times = [at * 86_400_000 for at in range(4)]
    with pytest.raises(InvalidConfigError, match="up to offset 3 of t-0 have timestamps of more than 3 days"):
        write_days(OsFs(), str(tmp_path), [_batch(times)], _FORM)
