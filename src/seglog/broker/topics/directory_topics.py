"""The topics of a broker without a cluster. The directory owns them; the metadata store shows what the directory has.

If Kafka or a tool creates, removes or trims topics while the broker is down, the next start takes that over. A change
is complete in the directory before it is in the store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final
from uuid import UUID, uuid5

from seglog.broker.requests import ApiError
from seglog.cluster.model import (
    TOPICS,
    Member,
    PartitionState,
    TopicState,
    decode_topic,
    encode,
    partition_name,
    topic_name,
)
from seglog.cluster.store import Change
from seglog.core.descriptors import room_for_logs
from seglog.core.error_codes import ErrorCode
from seglog.core.types import TopicPartition
from seglog.storage.directory.catalog import NewTopic
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.topics_file import TopicInfo

BROKER_EPOCH: Final = 1
"""The store begins with the process, and the broker registers once in it."""


class DirectoryTopics:
    """`seglog.cluster.embedded_store.Backing` of ``topics/…``; the states of partitions follow from the topics.

    This broker leads each partition from the start, in an epoch above all epochs of the log: the start may have cut
    records that were not on disk, and the new epoch tells consumers that the end has moved.
    """

    roots: Collection[str] = (TOPICS,)

    def __init__(self, directory: LogDir, node_id: int) -> None:
        self._directory = directory
        self._node_id = node_id
        self._ids: dict[str, UUID] = {}

    def load(self) -> Mapping[str, bytes]:
        values: dict[str, bytes] = {}
        for info in self._directory.topics().values():
            state = self._state(info)
            values[topic_name(info.name)] = encode(state)
            values.update(self._partitions(state, range(info.partitions)))
        return values

    def change(self, changes: Sequence[Change], /) -> Mapping[str, bytes | None]:
        """Errors of `LogDir.create_topics`, `add_partitions_to`, `alter_config` and `delete_topics`; `ApiError` if the
        process lacks file descriptors for so many logs. Changes of one kind are made together, all or none;
        `seglog.broker.topics.topic_changes` has one kind in a commit."""
        deleted: dict[str, UUID] = {}
        created: list[TopicState] = []
        grown: dict[str, tuple[TopicState, int]] = {}
        others: list[TopicState] = []
        for change in changes:
            name = change.name.removeprefix(f"{TOPICS}/")
            if change.value is None:
                deleted[name] = self._ids[name]
                continue
            wanted = decode_topic(change.name, change.value)
            there = len(self._directory.partitions_of(name)) if name in self._ids else None
            if there is None:
                created.append(wanted)
            elif len(wanted.assignment) > there:
                grown[name] = wanted, there
            else:
                others.append(wanted)
        if created or grown:
            more = (len(one.assignment) - there for one, there in grown.values())
            _check_descriptors(sum(len(one.assignment) for one in created) + sum(more))
        followed: dict[str, bytes | None] = {}
        if deleted:
            followed |= self._delete(deleted)
        if created:
            followed |= self._create(created)
        if grown:
            followed |= self._grow(grown)
        for one in others:
            self._configure(one)
        return followed

    def _delete(self, topics: Mapping[str, UUID]) -> Mapping[str, None]:
        gone = {
            partition_name(topic_id, number): None
            for name, topic_id in topics.items()
            for number in range(len(self._directory.partitions_of(name)))
        }
        self._directory.delete_topics(topics.keys())
        for name in topics:
            del self._ids[name]
        return gone

    def _create(self, topics: Sequence[TopicState]) -> Mapping[str, bytes]:
        self._directory.create_topics(
            [NewTopic(one.name, len(one.assignment), one.config, one.topic_id) for one in topics]
        )
        led: dict[str, bytes] = {}
        for one in topics:
            self._ids[one.name] = one.topic_id
            led |= self._partitions(one, range(len(one.assignment)))
        return led

    def _grow(self, topics: Mapping[str, tuple[TopicState, int]]) -> Mapping[str, bytes]:
        """Each with the number of partitions that it has."""
        self._directory.add_partitions_to({name: len(one.assignment) for name, (one, _) in topics.items()})
        led: dict[str, bytes] = {}
        for one, before in topics.values():
            led |= self._partitions(one, range(before, len(one.assignment)))
        return led

    def _configure(self, wanted: TopicState) -> None:
        there = self._directory.topic(wanted.name)
        gone = dict.fromkeys((there.config if there is not None else {}).keys() - wanted.config.keys())
        self._directory.alter_config(wanted.name, {**gone, **wanted.config})

    def _state(self, info: TopicInfo) -> TopicState:
        """A topic that an old Kafka created without an id gets the same id at each start."""
        topic_id = info.topic_id or uuid5(self._directory.meta.directory_id or UUID(int=0), info.name)
        self._ids[info.name] = topic_id
        assignment = ((self._node_id,),) * info.partitions
        return TopicState(name=info.name, topic_id=topic_id, assignment=assignment, config=info.config)

    def _partitions(self, topic: TopicState, numbers: range) -> Mapping[str, bytes]:
        return {partition_name(topic.topic_id, number): self._partition(topic.name, number) for number in numbers}

    def _partition(self, topic: str, number: int) -> bytes:
        log = self._directory.logs.get(TopicPartition(topic, number))
        return _led(self._node_id, 0 if log is None else log.epochs.latest + 1)


@lru_cache(maxsize=256)
def _led(node_id: int, epoch: int) -> bytes:
    isr = (Member(node_id, BROKER_EPOCH),)
    return encode(PartitionState(replicas=(node_id,), leader=node_id, leader_epoch=epoch, isr=isr))


def _check_descriptors(partitions: int) -> None:
    room = room_for_logs()
    if partitions > room:
        message = f"{partitions} partitions need {partitions} open files: {room} are left for them (ulimit -n)"
        raise ApiError(ErrorCode.POLICY_VIOLATION, message)
