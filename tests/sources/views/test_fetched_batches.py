"""The view of batches through a broker is that of the directory, but for files and positions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_seglog import DefaultSource
from seglog.client.kept_connections import close_all
from seglog.core.errors import InvalidConfigError
from seglog.testing import Broker
from tests import golden
from tests.sources.views.view_reading import Row, read, rows_of


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.log_dir(golden.unpack(tmp_path_factory.mktemp("golden"), "4.4.0"))


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[Broker]:
    with Broker(copy_of=directory, settings={"log.retention.ms": "-1"}) as broker:
        yield broker
    close_all()


def fetched(broker: Broker, **options: str) -> list[Row]:
    source = DefaultSource({"kafka.bootstrap.servers": broker.bootstrap, "view": "batches", **options})
    return rows_of(source)


def placeless(rows: list[Row]) -> list[Row]:
    return [{**row, "file": None, "position": None} for row in rows]


@pytest.mark.parametrize("parts", ["", "40"])
def test_every_batch_is_there_once(directory: Path, broker: Broker, parts: str) -> None:
    options = {"minPartitions": parts} if parts else {}
    found = fetched(broker, **options)
    assert len(found) > 100
    key = ("topic", "partition", "baseOffset")
    expected = placeless(read("batches", directory, {"until": "logEnd"}))
    assert sorted(found, key=lambda row: [row[name] or 0 for name in key]) == sorted(
        expected, key=lambda row: [row[name] or 0 for name in key]
    )


def test_a_range_has_the_batches_around_its_ends(directory: Path, broker: Broker) -> None:
    topic = "codec-zstd"
    chosen = {
        "subscribe": topic,
        "startingOffsets": f'{{"{topic}": {{"0": 7}}}}',
        "endingOffsets": f'{{"{topic}": {{"0": 33}}}}',
    }
    expected = placeless(read("batches", directory, {**chosen, "until": "logEnd"}))
    assert fetched(broker, **chosen) == expected
    assert expected


def test_brokers_show_no_files() -> None:
    with pytest.raises(InvalidConfigError, match="option view is 'segments': brokers do not show their files"):
        DefaultSource({"kafka.bootstrap.servers": "b:9092", "view": "segments"}).schema()
