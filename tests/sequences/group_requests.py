"""Requests of clients and administrators about groups and their offsets that are answered at once; see `GroupWorld`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seglog.protocol.apis import ApiKey
from tests.sequences.both import UNKNOWN_ID, Ref
from tests.sequences.logs import some_version

if TYPE_CHECKING:
    from tests.sequences.groups import Client, GroupWorld


def commit(world: GroupWorld, client: Client | None = None) -> None:
    client = client or world.free()
    if client is None:
        return
    rng = world.rng
    version = some_version(rng, ApiKey.OFFSET_COMMIT, at_least=7 if client.instance else 0)
    alone = rng.random() < 0.25
    # Where nothing of a commit can be stored Kafka knows its group only after the next write.
    texts = ["", "here", None] if alone or client.generation < 0 else ["", "here", None, "x" * 5000]
    topics = [
        {
            "name": name,
            "topic_id": Ref(name) if name == world.topic else UNKNOWN_ID,
            "partitions": [
                {
                    "partition_index": rng.choice([0, 1, 1, 5]),
                    "committed_offset": rng.randrange(1000),
                    "committed_leader_epoch": rng.choice([-1, 0, 3]),
                    "committed_metadata": rng.choice(texts),
                }
            ],
        }
        for name in rng.choice([[world.topic], [world.topic], [world.topic, "nowhere"]])
    ]
    world.both.ask(
        ApiKey.OFFSET_COMMIT,
        version,
        wire=client.name,
        group_id=client.group,
        generation_id=-1 if alone else world.generation_of(client),
        generation_id_or_member_epoch=-1 if alone else world.generation_of(client),
        member_id="" if alone else world.member_of(client),
        group_instance_id=None if alone or version < 7 else world.instance_of(client),
        retention_time=-1,
        topics=topics,
    )


def fetch_offsets(world: GroupWorld) -> None:
    rng = world.rng
    version = some_version(rng, ApiKey.OFFSET_FETCH)
    every = version >= 2 and rng.random() < 0.3
    names = rng.choice([[world.topic], [world.topic, "nowhere"]])
    topics = (
        None
        if every
        else [
            {
                "name": name,
                "topic_id": Ref(name) if name == world.topic else UNKNOWN_ID,
                "partition_indexes": [0, 1, 5],
            }
            for name in names
        ]
    )
    groups = [rng.choice([*world.groups, "no-group"])]
    if version >= 8 and rng.random() < 0.5:
        groups = [*world.groups, "no-group"]
    asked = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics} for group in groups]
    stable = rng.random() < 0.5
    world.both.ask(ApiKey.OFFSET_FETCH, version, group_id=groups[0], topics=topics, groups=asked, require_stable=stable)


def delete_offsets(world: GroupWorld) -> None:
    rng = world.rng
    partitions = [{"partition_index": rng.choice([0, 1, 5])}]
    topics = [{"name": rng.choice([world.topic, world.topic, "nowhere"]), "partitions": partitions}]
    group = rng.choice([*world.groups, *world.groups, "no-group", ""])
    world.both.ask(ApiKey.OFFSET_DELETE, 0, group_id=group, topics=topics)


def describe(world: GroupWorld) -> None:
    asked = [*world.groups, "no-group", ""]
    world.both.ask(
        ApiKey.DESCRIBE_GROUPS,
        some_version(world.rng, ApiKey.DESCRIBE_GROUPS),
        groups=world.rng.sample(asked, world.rng.randint(1, len(asked))),
        include_authorized_operations=world.rng.random() < 0.5,
    )


def list_groups(world: GroupWorld) -> None:
    """Only those of this world: others run beside it."""
    version = some_version(world.rng, ApiKey.LIST_GROUPS)
    states = world.rng.choice([[], ["Stable"], ["empty", "PreparingRebalance"], ["Nonsense"]])
    types = world.rng.choice([[], ["classic"], ["consumer"]])
    world.both.tell(f"LIST_GROUPS v{version} {states} {types}")
    found = []
    for side in world.both.sides:
        answer = side.wire().ask(ApiKey.LIST_GROUPS, version, states_filter=states, types_filter=types)
        answer.groups = tuple(group for group in answer.groups if group.group_id in world.groups)
        found.append(side.plain(answer))
    world.both.compare(*found)


def delete_groups(world: GroupWorld) -> None:
    version = some_version(world.rng, ApiKey.DELETE_GROUPS)
    names = world.rng.sample([*world.groups, "no-group", ""], world.rng.randint(1, 2))
    world.both.ask(ApiKey.DELETE_GROUPS, version, groups_names=names)


def find_coordinator(world: GroupWorld) -> None:
    version = some_version(world.rng, ApiKey.FIND_COORDINATOR)
    kind = world.rng.choice([0, 0, 3]) if version else 0
    world.both.ask(
        ApiKey.FIND_COORDINATOR,
        version,
        key=world.groups[0],
        key_type=kind,
        coordinator_keys=world.rng.choice([[], world.groups]),
    )
