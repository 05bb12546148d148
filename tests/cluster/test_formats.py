"""Brokers of two releases: which may join a cluster, and when its format may rise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.formats import FORMAT, OURS, FormatError, Formats, check_format, raise_format, speaks_name
from seglog.cluster.store import MISSING, Change, Check, VersionedValue
from tests.cli.run import Run, run_here
from tests.cluster.cluster_member import ClusterMember, stores
from tests.cluster.contract import SOON
from tests.cluster.faulty import Faulty

Work = Callable[[list[Faulty]], Coroutine[Any, Any, None]]


@pytest.fixture
def seglog(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


def run(path: Path, work: Work) -> None:
    async def with_stores() -> None:
        async with stores(f"sqlite:{path / 'store'}", 2) as made:
            await asyncio.wait_for(work(made), SOON)

    asyncio.run(with_stores())


def test_a_broker_holds_the_format_that_it_joins_with() -> None:
    assert check_format(None) == Change(FORMAT, b"1", MISSING)
    assert check_format(VersionedValue(b"2", 7)) == Check(FORMAT, 7)


@pytest.mark.parametrize(
    ("there", "ours", "why"),
    [
        (3, Formats(1, 2), "has format 3, this broker speaks formats 1 to 2: install a later seglog here"),
        (1, Formats(2, 3), "has format 1, this broker speaks formats 2 to 3: raise the cluster's format first"),
        (2, Formats(1, 1), "has format 2, this broker speaks format 1: install a later seglog here"),
    ],
)
def test_a_broker_without_the_clusters_format_is_refused_with_both(there: int, ours: Formats, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        check_format(VersionedValue(b"%d" % there, 0), ours)


def test_the_format_rises_when_every_broker_speaks_it(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        old, new = ClusterMember(made[0], 1, formats=Formats(1, 1)), ClusterMember(made[1], 2)
        await old.join()
        await new.join()
        assert await made[0].get(FORMAT) == VersionedValue(b"1", 0)  # as in a cluster of the first release
        with pytest.raises(FormatError, match="broker 1 speaks format 1, not 2: upgrade and restart it first"):
            await raise_format(made[1], 2)
        await old.membership.leave()
        assert await made[0].get(speaks_name(1)) is None
        await raise_format(made[1], 2)
        assert await made[0].get(FORMAT) == VersionedValue(b"2", 1)
        assert await raise_format(made[1], 2) == 2
        with pytest.raises(FormatError, match="it never goes back to 1"):
            await raise_format(made[1], 1)
        with pytest.raises(FormatError, match="has format 2, this broker speaks format 1"):
            await ClusterMember(made[0], 1, formats=Formats(1, 1)).join()
        again = ClusterMember(made[0], 1)
        await again.join()

    run(tmp_path, work)


def test_a_registered_broker_of_the_first_release_says_nothing_and_counts(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        await made[0].create("brokers/4", b"{}")
        with pytest.raises(FormatError, match="broker 4 speaks format 1, not 2"):
            await raise_format(made[1], 2)

    run(tmp_path, work)


def test_the_command_that_raises_it(tmp_path: Path, seglog: Run) -> None:
    address = f"sqlite:{tmp_path / 'store'}"
    ran = seglog("cluster", "upgrade", "--store", address)
    assert (ran.code, ran.err.count("there is no cluster at")) == (2, 1)
    run(tmp_path, _nothing)
    ran = seglog("cluster", "upgrade", "--store", address)
    assert (ran.code, ran.out) == (0, b"raised the format of the metadata from 1 to %d\n" % OURS.high)
    (told,) = seglog("cluster", "upgrade", "--store", address, "--json").objects
    assert told == {"store": address, "before": OURS.high, "format": OURS.high}


async def _nothing(_: list[Faulty]) -> None:
    pass
