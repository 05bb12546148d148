"""What clients may do to groups at a bad moment."""

from __future__ import annotations

from collections.abc import Callable

from seglog.protocol.apis import ApiKey
from tests.broker.running import RunningNode, Wire

OFFSETS = "__consumer_offsets"


def test_offsets_that_are_deleted_while_they_are_loaded(start: Callable[..., RunningNode]) -> None:
    """Groups begin anew; before, there were none until the next start."""
    running = start()
    node = running.node
    with Wire(running.bootstrap) as wire:
        commit(wire)

        async def delete() -> None:
            node.groups._homes.clear()
            assert node.groups._home(0) is not None  # to be loaded at the next turn of the loop, and then
            node.directory.delete_topic(OFFSETS)

        running.on_loop(delete)
        wire.ask(ApiKey.METADATA, topics=[])

        async def hide() -> None:
            node.topics.hide(OFFSETS)

        running.on_loop(hide)
        commit(wire)


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
