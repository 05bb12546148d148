"""An object store fails a run's n-th request: the run succeeds or says so, and the next one makes the table whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog.table import maintenance, small_files
from seglog.table.building import update_table
from seglog.table.iceberg import log_table
from seglog.table.iceberg.catalogs import CatalogOptions
from tests.kit.object_store import BUCKET, KINDS, Kind, ObjectStoreServer
from tests.table.tables import append, flights, scanned, stored

pytestmark = pytest.mark.filterwarnings("ignore:Failed to delete old metadata")  # pyiceberg's, after a commit

_ONCE = 1
"""pyarrow tries again."""
_FOR_LONG = 12
_STEP = 3


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as server:
        yield server


class _Table:
    """A table, and a log that grows before each run."""

    def __init__(self, path: Path, store: ObjectStoreServer) -> None:
        self._log = path / "log"
        self._at = f"s3://{BUCKET}/{path.name}/flights"
        self._catalog = CatalogOptions(f"sqlite:///{path}/catalog.db", store.properties)
        self._store = store
        self._next = 0
        self.failed = 0
        self.grow()
        self.update()

    def grow(self) -> None:
        append(self._log, flights(self._next, 3), partition=self._next % 2)
        self._next += 3

    def update(self) -> None:
        update_table(self._log, self._at, topic="flights", workers=1, catalog=self._catalog)

    def requests_of_a_run(self) -> int:
        self.grow()
        self._store.heal()
        self.update()
        return self._store.requests

    def fail(self, first: int, times: int, kind: Kind) -> None:
        """A run with failures, and one without."""
        before = stored(self._at, self._catalog)
        self.grow()
        self._store.fail(first, times, kind)
        said = ""
        try:
            self.update()
        except OSError as error:
            said = str(error)
            self.failed += 1
        self._store.heal()
        after = stored(self._at, self._catalog)
        assert after.equals(scanned(self._log)) or (after.equals(before) and "AWS Error" in said)
        self.update()
        assert stored(self._at, self._catalog).equals(scanned(self._log))


@pytest.fixture
def table(tmp_path: Path, store: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> _Table:
    monkeypatch.setattr(small_files, "FAN_IN", 2)  # each run rewrites, lets snapshots go, and sweeps
    monkeypatch.setattr(log_table, "KEPT_SNAPSHOTS", 2)
    monkeypatch.setattr(maintenance, "SWEEP_MS", 0)
    return _Table(tmp_path, store)


def test_a_failure_is_tried_again(table: _Table) -> None:
    step = table.requests_of_a_run() // len(KINDS)
    for number, kind in enumerate(KINDS):
        table.fail(number * step + step // 2, _ONCE, kind)
    assert not table.failed


def test_a_store_that_fails_for_long(table: _Table) -> None:
    requests = table.requests_of_a_run()
    table.fail(requests // 4, _FOR_LONG, "503")
    table.fail(requests * 3 // 4, _FOR_LONG, "unanswered")
    assert table.failed


@pytest.mark.everything
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("times", [_ONCE, _FOR_LONG])
@pytest.mark.parametrize("kind", KINDS)
def test_any_request_may_fail(table: _Table, kind: Kind, times: int) -> None:
    first = KINDS.index(kind) % _STEP
    while first < table.requests_of_a_run():
        table.fail(first, times, kind)
        first += _STEP
    assert bool(table.failed) == (times == _FOR_LONG)
