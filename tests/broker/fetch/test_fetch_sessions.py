"""How many partitions fetch sessions remember."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from seglog.broker.fetch import fetch_sessions
from seglog.broker.fetch.fetch_sessions import (
    FetchPartition,
    FetchSessionCache,
    FetchSessionIdNotFoundError,
    PartitionKey,
)
from tests.cases import case

MOST = 100
WANTED = FetchPartition(0, 1)


def keys(numbers: Iterable[int]) -> list[tuple[PartitionKey, FetchPartition]]:
    return [(("t", number), WANTED) for number in numbers]


def test_all_sessions_together_have_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", MOST)
    rng = random.Random(1)
    cache = FetchSessionCache(5, now=lambda: 0.0, rng=rng)
    there: dict[int, fetch_sessions.ConsumerFetchSession] = {}
    for _ in range(5000):
        case()
        if rng.random() < 0.4:
            wanted = keys(range(rng.randrange(60)))
            session = cache.open(has_ids=False, size=len(wanted))
            if session is not None:
                cache.update(session, wanted, [])
                there[session.session_id] = session
        elif there:
            session = rng.choice(list(there.values()))
            if rng.random() < 0.2:
                cache.close(session.session_id)
                del there[session.session_id]
                continue
            cache.find(session.session_id, session.epoch, has_ids=False)
            forgotten: list[PartitionKey] = [("t", rng.randrange(60)) for _ in range(rng.randrange(20))]
            try:
                cache.update(session, keys(rng.sample(range(200), rng.randrange(20))), forgotten)
            except FetchSessionIdNotFoundError:
                del there[session.session_id]
        assert len(cache) == len(there)
        assert sum(len(session.partitions) for session in there.values()) <= MOST
    for session_id in list(there):
        cache.close(session_id)
    assert cache.open(has_ids=False, size=MOST) is not None  # all of it was given back
