"""Markers are written until each partition has one, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import pytest

from seglog.coordinators.transactions.markers import (
    MarkerRequest,
    MarkersFencedError,
    MarkerWriter,
    Results,
    TransactionMarker,
)
from seglog.core.error_codes import ErrorCode
from seglog.core.types import TopicPartition

MARKER: Final = TransactionMarker(producer_id=5, producer_epoch=1, commit=True, coordinator_epoch=3, version=2)
HERE: Final = TopicPartition("t", 0)
THERE: Final = TopicPartition("t", 1)


class Brokers:
    """Brokers that answer with the codes that are left in ``codes``, then with NONE."""

    def __init__(self, leaders: dict[TopicPartition, int | None], *codes: ErrorCode) -> None:
        self.leaders = leaders
        self.codes = list(codes)
        self.asked: list[tuple[int, list[MarkerRequest]]] = []
        self.writer = MarkerWriter(lambda partition: self.leaders[partition], self.write)

    async def write(self, broker: int, requests: Sequence[MarkerRequest]) -> Sequence[Results]:
        self.asked.append((broker, list(requests)))
        await asyncio.sleep(0)
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        return [dict.fromkeys(request.partitions, code) for request in requests]


def test_each_leader_gets_its_partitions() -> None:
    brokers = Brokers({HERE: 1, THERE: 2})
    asyncio.run(brokers.writer.write(MARKER, [HERE, THERE]))
    assert brokers.asked == [(1, [MarkerRequest(MARKER, [HERE])]), (2, [MarkerRequest(MARKER, [THERE])])]


def test_a_partition_of_a_deleted_topic_needs_no_marker() -> None:
    brokers = Brokers({HERE: None, THERE: 2})
    asyncio.run(brokers.writer.write(MARKER, [HERE, THERE]))
    assert [broker for broker, _ in brokers.asked] == [2]


def test_deleting_the_topic_ends_the_wait_for_its_marker() -> None:
    brokers = Brokers({HERE: 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def delete_and_wait() -> None:
        writing = asyncio.create_task(brokers.writer.write(MARKER, [HERE]))
        while not brokers.asked:
            await asyncio.sleep(0)
        brokers.leaders[HERE] = None
        await writing

    asyncio.run(delete_and_wait())
    assert len(brokers.asked) == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_failed_marker_is_sent_again(code: ErrorCode) -> None:
    brokers = Brokers({HERE: 1}, code)
    asyncio.run(brokers.writer.write(MARKER, [HERE]))
    assert len(brokers.asked) == 2


@pytest.mark.parametrize("code", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_coordinator_that_was_replaced_gives_up(code: ErrorCode) -> None:
    brokers = Brokers({HERE: 1}, code)
    with pytest.raises(MarkersFencedError):
        asyncio.run(brokers.writer.write(MARKER, [HERE]))
    assert len(brokers.asked) == 1


def test_markers_that_wait_for_a_broker_share_its_next_request() -> None:
    brokers = Brokers({HERE: 1})
    others = [MARKER._replace(producer_id=number) for number in range(3)]

    async def write_all() -> None:
        await asyncio.gather(*(brokers.writer.write(one, [HERE]) for one in (MARKER, *others)))

    asyncio.run(write_all())
    assert [len(requests) for _, requests in brokers.asked] in ([4], [1, 3])


def test_failure_of_a_write_reaches_all_that_wait_for_it() -> None:
    """They would wait for ever, and their transactions would stay open."""

    async def write(broker: int, requests: Sequence[MarkerRequest]) -> Sequence[Results]:
        await asyncio.sleep(0)
        raise RuntimeError(f"{len(requests)} of broker {broker}")

    async def both() -> list[BaseException | None]:
        writer = MarkerWriter(lambda _: 1, write)
        found = await asyncio.gather(*(writer.write(MARKER, [one]) for one in (HERE, THERE)), return_exceptions=True)
        await writer.close()
        return found

    assert all(isinstance(one, RuntimeError) for one in asyncio.run(both()))
