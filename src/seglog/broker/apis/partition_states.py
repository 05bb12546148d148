"""Changes of partition states on request: ElectLeaders, AlterPartitionReassignments.

A change is a function of the current state. If another broker changes the state meanwhile, the function is called
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from seglog.broker.requests import ApiError
from seglog.broker.store_writes import read, write
from seglog.broker.topics.topics import Topic
from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.generation import commit_raised
from seglog.cluster.model import (
    GENERATION,
    BrokerRegistration,
    PartitionState,
    TopicRules,
    VersionedState,
    decode_partition,
    encode,
    of_partition,
    partition_name,
)
from seglog.cluster.store import (
    Change,
    Check,
    MetadataStore,
    NoSuchNameError,
    StoreError,
    VersionChangedError,
    in_commits,
)
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError

Key = tuple[UUID, int]
Brokers = Mapping[int, BrokerRegistration]
Decide = Callable[[PartitionState, Brokers, TopicRules], PartitionState]
"""The new state of a partition; the same state means no change. `ApiError`."""
_MANY: Final = 2


class PartitionStates:
    """The states of all partitions in the metadata store."""

    def __init__(self, store: MetadataStore, view: ClusterView) -> None:
        self._store = store
        self._view = view

    def of(self, topic: Topic, number: int) -> PartitionState | None:
        """None if the partition does not exist, or none of its replicas has started yet."""
        stored = self._view.partitions.get((topic.topic_id, number))
        return None if stored is None else stored.state

    async def change(self, wanted: Mapping[Key, Decide]) -> Mapping[Key, SeglogError]:
        """Change these partitions; returns the errors of those that were refused. Writes many in one commit, and after
        a refused commit each by itself."""
        refused: dict[Key, SeglogError] = {}
        steps: list[Change] = []
        keys: dict[str, Key] = {}
        for key, decide in wanted.items():
            stored = self._view.partitions.get(key)
            try:
                changed = self._decided(key, stored, decide)
            except SeglogError as error:
                refused[key] = error
                continue
            if stored is not None and changed is not None:
                name = partition_name(*key)
                keys[name] = key
                steps.append(Change(name, encode(changed), stored.version))
        for commit in in_commits(steps, [Check(GENERATION, 0)]):
            for key in await self._commit([step for step in commit if isinstance(step, Change)], keys):
                try:
                    await self._change_one(key, wanted[key])
                except SeglogError as error:
                    refused[key] = error
        return refused

    def _decided(self, key: Key, stored: VersionedState | None, decide: Decide) -> PartitionState | None:
        """None if there is no change. `ApiError`."""
        topic = self._view.topics_by_id.get(key[0])
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if stored is None:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "None of its replicas has been there yet.")
        brokers = of_partition(self._view.brokers, key)
        changed = decide(stored.state, brokers, self._view.view().rules(topic))
        return None if changed == stored.state else changed

    async def _commit(self, steps: Sequence[Change], keys: Mapping[str, Key]) -> Iterable[Key]:
        """Write them together; returns the keys of those that must be written one by one."""
        if len(steps) < _MANY:
            return [keys[step.name] for step in steps]
        try:
            versions = await commit_raised(self._store, steps)
        except StoreError:
            return [keys[step.name] for step in steps]
        for step, version in zip(steps, versions, strict=True):
            assert step.value is not None
            self._view.note(step.name, step.value, version)
        return ()

    async def _change_one(self, key: Key, decide: Decide) -> None:
        name = partition_name(*key)
        while True:
            found = await read(self._store.get(name))
            stored = None if found is None else VersionedState(decode_partition(name, found.value), found.version)
            if found is not None:
                self._view.note(name, found.value, found.version)
            changed = self._decided(key, stored, decide)
            if changed is None or stored is None:
                return
            value = encode(changed)
            try:
                version = await write(self._store, name, value, stored.version)
            except (VersionChangedError, NoSuchNameError):
                continue
            self._view.note(name, value, version)
            return
