"""Quix Streams and Faust count the records of each key, are killed, and continue where they stopped."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.ecosystem.artefacts import python_packages
from tests.ecosystem.places import Place
from tests.ecosystem.processes import APPS, running
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail, TailRecord, fill

_RECORDS: Final = [(f"k{number % 40}", f"line {number}") for number in range(4_000)]
_HALF: Final = len(_RECORDS) // 2


class StreamsLibrary(NamedTuple):
    name: str
    version: str
    app: str
    pins: tuple[str, ...]
    guarantee: str
    """As the library spells it."""

    def command(self, place: Place, path: Path) -> list[str]:
        arguments = [place.bootstrap, str(path / "state"), self.guarantee, str(place.replicas)]
        return [sys.executable, str(APPS / self.app), *arguments]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(python_packages(*self.pins))}

    @property
    def is_exactly_once(self) -> bool:
        return self.guarantee.startswith("exactly")


_QUIX: Final = ("Quix Streams", "3.28.1", "quix_app.py", ("quixstreams==3.28.1",))
_FAUST: Final = ("Faust", "0.15.3", "faust_app.py", ("faust-streaming==0.15.3",))


@pytest.mark.parametrize(
    "library",
    [
        StreamsLibrary(*_QUIX, "exactly-once"),
        StreamsLibrary(*_QUIX, "at-least-once"),
        StreamsLibrary(*_FAUST, "at_least_once"),
    ],
    ids=lambda library: f"{library.name}-{library.guarantee}".replace(" ", "-"),
)
def test_python_streams_count_every_key(place: Place, library: StreamsLibrary, tmp_path: Path, report: Report) -> None:
    report.of(library.name, library.version, f"stateful count, {library.guarantee}; killed")
    place.create("lines", "counts")
    fill(place.bootstrap, "lines", _RECORDS[:_HALF])
    with Tail(place.bootstrap, "counts") as tail:
        with running(library.command(place, tmp_path), tmp_path, library.environment()):
            tail.read_until(lambda records: _total(records) >= _HALF // 2, 180)
            place.disturb()
        fill(place.bootstrap, "lines", _RECORDS[_HALF:])
        with running(library.command(place, tmp_path), tmp_path, library.environment()):
            tail.read_until(lambda records: _total(records) >= len(_RECORDS), 180)
            records = tail.read_on(3)
    expected = Counter(key for key, _ in _RECORDS)
    report.counted(len(_RECORDS), len(records))
    if library.is_exactly_once:
        seen: dict[str, list[int]] = defaultdict(list)
        for key, count in records:
            assert key is not None
            seen[key].append(int(count))
        assert seen == {key: list(range(1, count + 1)) for key, count in expected.items()}
    else:
        assert all(_last(records)[key] >= count for key, count in expected.items())


def _total(records: list[TailRecord]) -> int:
    return sum(_last(records).values())


def _last(records: list[TailRecord]) -> Counter[str]:
    return Counter({key: int(count) for key, count in records if key is not None})
