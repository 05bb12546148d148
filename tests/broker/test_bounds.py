"""Groups, transactional ids and producer ids that clients invent: a broker has a limit for each, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pytest

from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import RunningNode, Wire

MOST: Final = 5
SETTINGS: Final = {
    "seglog.max.groups": str(MOST),
    "seglog.max.producers": str(MOST),
    "seglog.max.transactional.ids": str(MOST),
    "offsets.topic.num.partitions": "3",
}
FULL: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
_NEW: Final = {"member_id": "", "group_instance_id": None}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("bounds"), SETTINGS) as running, Wire(running.bootstrap) as wire:
        wire.create_topic("t", 2)
        for number in range(MOST):
            assert _settled(partial(_commit, wire, f"group-{number}")) == 0
        yield running


def _settled(ask: Callable[[], int]) -> int:
    """Again while the coordinators load."""
    while (code := ask()) in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
        pass
    return code


def _commit(wire: Wire, group: str) -> int:
    wire.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=[group])
    offset = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    answer = wire.ask(
        ApiKey.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[{"name": "t", "partitions": [offset]}],
        **_NEW,
    )
    return int(answer.topics[0].partitions[0].error_code)


def _join(wire: Wire, group: str) -> int:
    protocols = [{"name": "range", "metadata": b""}]
    timeouts = {"session_timeout": 10_000, "rebalance_timeout": 10_000}
    answer: Any = wire.ask(
        ApiKey.JOIN_GROUP, 5, group_id=group, protocol_type="consumer", protocols=protocols, **timeouts, **_NEW
    )
    return int(answer.error_code)


def _heartbeat(wire: Wire, group: str) -> int:
    answer = wire.ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        group_id=group,
        member_id="AAAAAAAAAAAAAAAAAAAAAA",
        member_epoch=0,
        rebalance_timeout=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    return int(answer.error_code)


def _init(wire: Wire, transactional_id: str) -> int:
    wire.ask(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=[transactional_id])
    none = {"producer_id": -1, "producer_epoch": -1}
    answer = wire.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=transactional_id, transaction_timeout=60_000, **none)
    return int(answer.error_code)


@pytest.mark.parametrize("ask", [_commit, _join, _heartbeat])
def test_a_group_more_is_refused_and_the_others_are_served(wire: Wire, ask: Callable[[Wire, str], int]) -> None:
    assert ask(wire, "one-more") == FULL
    assert _commit(wire, "group-0") == 0


def test_a_transactional_id_more_is_refused_and_the_others_are_served(wire: Wire) -> None:
    found = [_settled(partial(_init, wire, f"id-{number}")) for number in range(MOST + 1)]
    assert found == [0] * MOST + [FULL]
    assert _init(wire, "id-0") == 0


def test_a_producer_more_is_refused_and_the_others_are_served(wire: Wire) -> None:
    def produce(producer_id: int, sequence: int = 0, partition: int = 0) -> int:
        data = encode_batch(
            [NewRecord(b"v", timestamp=1)], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )
        topic_data = [{"name": "t", "partition_data": [{"index": partition, "records": data}]}]
        answer = wire.ask(ApiKey.PRODUCE, 9, transactional_id=None, acks=-1, timeout=9_000, topic_data=topic_data)
        return int(answer.responses[0].partition_responses[0].error_code)

    found = [produce(number) for number in range(MOST + 1)]
    assert found == [0] * MOST + [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert produce(0, 1) == 0
    assert produce(-1, -1) == 0
    assert produce(MOST, partition=1) == 0
