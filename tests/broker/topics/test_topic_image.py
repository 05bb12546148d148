"""The image of topics that consumer groups see, after changes of topics in a running broker."""

from __future__ import annotations

from seglog.broker.app import Node
from seglog.coordinators.consumer.metadata_hash import group_hash, topic_hash
from tests.broker.broker_thread import RunningNode, Wire


def test_image_follows_the_topics(broker: RunningNode, wire: Wire, topic_name: str) -> None:
    image = broker.node.groups.topics
    before = image.version
    assert image.find(topic_name) is None
    assert image.hash_of([topic_name]) == 0
    wire.create_topic(topic_name, 2)
    found = image.find(topic_name)
    assert found is not None
    assert found.partition_count == 2
    assert image.find(found.topic_id) == found
    assert topic_name in image.names
    assert image.created_version > before
    created = image.created_version
    one = image.hash_of([topic_name, "other"])
    assert one == group_hash({topic_name: topic_hash(topic_name, found.topic_id, ((), ()))})

    async def delete() -> None:
        node: Node = broker.node
        await node.changes.delete(node.topics.by_name[topic_name])

    broker.on_loop(delete)
    assert image.find(topic_name) is None
    assert image.hash_of([topic_name]) == 0
    assert image.version > created
    assert image.created_version == created
