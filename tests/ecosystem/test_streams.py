"""Kafka Streams: every word is counted once, also when the application or a broker is killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ecosystem.artefacts import java_app
from tests.ecosystem.places import Place
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail, TailRecord, fill
from tests.kafka.process import JavaProcess

_LINES = [f"tea cup-{number % 7} leaf-{number % 31}" for number in range(3_000)]
_HALF = len(_LINES) // 2
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


@contextmanager
def _app(place: Place, path: Path, guarantee: str, *topology: str) -> Iterator[JavaProcess]:
    process = JavaProcess(
        main="StreamsApp",
        class_path=java_app("streams"),
        arguments=[place.bootstrap, "app", guarantee, str(path / "state"), str(place.replicas), *topology],
        log_file=path / "streams.log",
        jvm_options=_JVM,
    )
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_streams_counts_every_word(place: Place, guarantee: str, tmp_path: Path, report: Report) -> None:
    report.of("Kafka Streams", "4.4.0", f"word count, {guarantee}")
    place.create("lines", "counts")
    fill(place.bootstrap, "lines", ((None, line) for line in _LINES[:_HALF]))
    with Tail(place.bootstrap, "counts") as tail:
        with _app(place, tmp_path, guarantee, "words", "lines", "counts"):
            tail.read_until(lambda records: len(records) >= _HALF)
            place.disturb()
        fill(place.bootstrap, "lines", ((None, line) for line in _LINES[_HALF:]))
        with _app(place, tmp_path, guarantee, "words", "lines", "counts"):
            tail.read_until(lambda records: _last(records)["tea"] >= len(_LINES), 180)
            records = tail.read_on(3)
    words = Counter(word for line in _LINES for word in line.split())
    if guarantee == "exactly_once_v2":
        seen: dict[str, list[int]] = defaultdict(list)
        for word, count in records:
            assert word is not None
            seen[word].append(int(count))
        assert seen == {word: list(range(1, count + 1)) for word, count in words.items()}
        report.counted(sum(words.values()), len(records))
    else:
        last = _last(records)
        assert all(last[word] >= count for word, count in words.items())
        report.counted(sum(words.values()), sum(last.values()))


def _last(records: list[TailRecord]) -> Counter[str]:
    return Counter({word: int(count) for word, count in records if word is not None})


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_streams_joins_every_order(place: Place, guarantee: str, tmp_path: Path, report: Report) -> None:
    report.of("Kafka Streams", "4.4.0", f"join with a table, {guarantee}")
    place.create("orders", "joined")
    place.create("users", compacted=True)
    fill(place.bootstrap, "users", ((f"u{number}", f"user {number}") for number in range(100)))
    orders = [(f"u{number % 100}", f"order {number}") for number in range(4_000)]
    with Tail(place.bootstrap, "joined") as tail:
        with _app(place, tmp_path, guarantee, "join", "orders", "users", "joined"):
            fill(place.bootstrap, "orders", [("u1", "the first order")])
            tail.read_until(lambda records: len(records) >= 1)
            fill(place.bootstrap, "orders", orders[:2_000])
            tail.read_until(lambda records: len(records) > 1_000)
            place.disturb()
        fill(place.bootstrap, "orders", orders[2_000:])
        with _app(place, tmp_path, guarantee, "join", "orders", "users", "joined"):
            tail.read_until(lambda records: len({one.value for one in records}) > len(orders), 180)
            records = tail.read_on(3)
    expected = sorted([f"{order} by user {key[1:]}" for key, order in orders] + ["the first order by user 1"])
    found = [one.value for one in records]
    report.counted(len(expected), len(found))
    assert sorted(found if guarantee == "exactly_once_v2" else set(found)) == expected
