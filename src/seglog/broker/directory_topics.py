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
        """Errors of `LogDir.create_topic`, `add_partitions`, `alter_config` and `delete_topic`; `ApiError` if the
        process lacks file descriptors for so many logs."""
        followed: dict[str, bytes | None] = {}
        for change in changes:
            name = change.name.removeprefix(f"{TOPICS}/")
            if change.value is None:
                followed |= self._delete(name)
            else:
                followed |= self._put(decode_topic(change.name, change.value))
        return followed

    def _delete(self, name: str) -> Mapping[str, None]:
        topic_id, count = self._ids.pop(name), len(self._directory.partitions_of(name))
        self._directory.delete_topic(name)
        return {partition_name(topic_id, number): None for number in range(count)}

    def _put(self, wanted: TopicState) -> Mapping[str, bytes]:
        directory, name, count = self._directory, wanted.name, len(wanted.assignment)
        there = directory.topics().get(name)
        before = 0 if there is None else there.partitions
        _check_descriptors(count - before)
        if there is None:
            directory.create_topic(name, count, wanted.config, topic_id=wanted.topic_id)
            self._ids[name] = wanted.topic_id
        elif count > before:
            directory.add_partitions(name, count)
        else:
            gone = dict.fromkeys(there.config.keys() - wanted.config.keys())
            directory.alter_config(name, {**gone, **wanted.config})
        return self._partitions(wanted, range(before, count))

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
