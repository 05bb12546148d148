"""Requests to groups that arrive at a bad moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seglog.coordinators import group_coordinator
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire

OFFSETS = "__consumer_offsets"


def test_offsets_that_are_deleted_while_they_are_loaded(start: Callable[..., RunningNode]) -> None:
    """Groups begin again. Formerly, none worked until the next start."""
    running = start()
    node = running.node
    with Wire(running.bootstrap) as wire:
        commit(wire)

        async def delete() -> None:
            node.groups._contexts.clear()
            assert node.groups._context(0) is not None  # to be loaded at the next turn of the loop, and then
            await node.changes.delete(node.topics.by_name[OFFSETS])

        running.on_loop(delete)
        commit(wire)


def test_members_that_nobody_asked_to_come_back(
    start: Callable[..., RunningNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before KIP-394 each joins its group at once, and stays although its client has disconnected."""
    monkeypatch.setattr(group_coordinator, "MAX_MEMBER_BYTES", 1_000_000)
    running = start()
    with Wire(running.bootstrap) as wire:
        commit(wire)
    codes = [join(running, f"crowd-{number}") for number in range(12)]
    assert codes == [0] * 9 + [15] * 3
    with Wire(running.bootstrap) as wire:
        commit(wire)  # who is in no group is not concerned

        async def forget() -> None:
            running.node.groups._contexts[0].shard.groups.clear()

        running.on_loop(forget)
    assert join(running, "later") == 0


def join(running: RunningNode, group: str) -> int:
    with Wire(running.bootstrap) as wire:
        answer = wire.ask(
            ApiKey.JOIN_GROUP,
            3,
            group_id=group,
            session_timeout=1_800_000,
            rebalance_timeout=1_800_000,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": bytes(100_000)}],
        )
    return int(answer.error_code)


def commit(wire: Wire) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
    wire.ask(ApiKey.METADATA, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    wire.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"])
    codes = {14}
    while codes == {14}:
        answer = wire.ask(
            ApiKey.OFFSET_COMMIT, 8, group_id="g", member_id="", generation_id_or_member_epoch=-1, topics=topics
        )
        codes = {partition.error_code for topic in answer.topics for partition in topic.partitions}
    assert codes == {0}
