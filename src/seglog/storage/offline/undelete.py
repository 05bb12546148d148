"""Brings deleted topics and strays back before they are gone: first a plan, then the work.

Kafka renames the directory of a deleted partition to ``-delete`` and unlinks it after ``file.delete.delay.ms``, and one
that its metadata does not know to ``-stray``. Both are whole until then. To come back, a partition needs its name, and
its topic in the metadata: with KRaft records in ``__cluster_metadata-0``, with seglog an entry of ``seglog.topics``.

Order of the work: directories get their names, they are repaired, since Kafka closed them in the middle of their work,
and the metadata comes last. A crash in between leaves partitions without a topic, which the next plan finds as well.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.core.clock import Clock
from seglog.core.errors import CorruptError, InvalidLogDirError
from seglog.core.fs import Fs
from seglog.core.topic_names import METADATA_TOPIC
from seglog.core.types import TopicPartition, parse_topic_partition
from seglog.storage.directory.strays import forget_stray, is_stray_name, read_stray, size_of
from seglog.storage.formats.checkpoints import (
    MetaProperties,
    encode_id,
    read_leader_epochs,
    read_meta_properties,
    read_partition_metadata,
)
from seglog.storage.formats.paths import TOPICS, is_set_aside, list_segments
from seglog.storage.formats.topics_file import TopicEntry, TopicsFile, read_topics
from seglog.storage.offline.kraft_metadata import (
    CONFIG_RECORD,
    PARTITION_RECORD,
    TOPIC_RECORD,
    TOPIC_RESOURCE,
    KraftMetadata,
    append_records,
    read_kraft_metadata,
)
from seglog.storage.offline.repair import RepairPlan, carry_out, plan_repair

KEPT: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The configuration of a topic whose own one is lost: nothing of it may be deleted before its operator decides."""
_NOTHING: Final = bytes(16)


class LostPartition(NamedTuple):
    """A directory that no topic has, and the partition that it was."""

    path: str
    partition: TopicPartition
    topic_id: UUID
    size: int
    last_epoch: int

    @property
    def is_aside(self) -> bool:
        """Whether it has the name of a deleted partition or a stray."""
        return is_set_aside(os.path.basename(self.path))


class TopicReturn(NamedTuple):
    """A topic that comes back: its name, id, partitions and configuration. ``loses`` says what does not."""

    name: str
    topic_id: UUID
    partitions: tuple[LostPartition, ...]
    config: Mapping[str, str]
    loses: tuple[str, ...]


class UndeletePlan(NamedTuple):
    """What would come back in a log directory, and which directories cannot, with the reasons."""

    path: str
    topics: tuple[TopicReturn, ...]
    refusals: tuple[str, ...]


def plan_undelete(fs: Fs, path: str, topics: Sequence[str] | None = None) -> UndeletePlan:
    """Plan for the log directory at ``path``, of all topics or these. Changes nothing.

    Raises `InvalidLogDirError` if it is not a log directory whose metadata is at hand; `CorruptError` for metadata
    that cannot be read.
    """
    meta = read_meta_properties(fs, path)
    if meta is None:
        raise InvalidLogDirError(f"{path} is not a log directory: it has no meta.properties")
    kraft = read_kraft_metadata(fs, path)
    ours = read_topics(fs, path)
    if kraft is not None:
        _check_alone(kraft, meta)
    elif not fs.exists(os.path.join(path, TOPICS)):
        raise InvalidLogDirError(
            f"{path} has neither {METADATA_TOPIC}-0 nor {TOPICS}: the topics' metadata is elsewhere. Run it where the "
            "only controller has its metadata.log.dir"
        )
    known = {one: name for name, one in kraft.topics.items()} if kraft else _our_ids(ours)
    refusals: list[str] = []
    lost = _find_lost(fs, path, kraft, known, refusals)
    if topics is not None:
        lost = [one for one in lost if one.partition.topic in topics]
    by_id: dict[UUID, list[LostPartition]] = {}
    for one in lost:
        by_id.setdefault(one.topic_id, []).append(one)
    found = []
    for topic_id, partitions in by_id.items():
        name = partitions[0].partition.topic
        reason = _refusal(fs, path, name, topic_id, partitions, kraft, ours)
        if reason is not None:
            refusals.append(reason)
        else:
            found.append(_returning(name, topic_id, partitions, kraft, ours))
    return UndeletePlan(path, tuple(sorted(found, key=lambda one: one.name)), tuple(refusals))


def _our_ids(topics: Mapping[str, TopicEntry]) -> dict[UUID, str]:
    return {entry.topic_id: name for name, entry in topics.items() if entry.topic_id is not None and not entry.deleted}


def _check_alone(kraft: KraftMetadata, meta: MetaProperties) -> None:
    """With several controllers a record in one copy of the log would be truncated again."""
    if kraft.voters != {meta.node_id}:
        voters = ", ".join(map(str, sorted(kraft.voters))) or "unknown"
        raise InvalidLogDirError(
            f"{kraft.path}: the controllers are {voters}, and this is node {meta.node_id}. Topics are brought back "
            "only where this node is the only controller"
        )


def _find_lost(
    fs: Fs, path: str, kraft: KraftMetadata | None, known: Mapping[UUID, str], refusals: list[str]
) -> list[LostPartition]:
    found = []
    for name in fs.listdir(path):
        child = os.path.join(path, name)
        aside = is_set_aside(name) and (name.endswith("-delete") or is_stray_name(name))
        partition = parse_topic_partition(name.rpartition(".")[0] if aside else name)
        if not fs.stat(child).is_dir or partition is None or partition.topic == METADATA_TOPIC:
            continue
        try:
            topic_id = read_partition_metadata(fs, child)
            epochs = read_leader_epochs(fs, child)
        except CorruptError as error:
            if aside:
                refusals.append(f"{child}: {error}")
            continue
        if topic_id is None:
            if aside:
                refusals.append(f"{child}: it has no partition.metadata, so its topic is not known")
            continue
        if topic_id in known and not aside:
            continue
        if not list_segments(fs, child):
            refusals.append(f"{child}: no segment is left")
            continue
        # A long name is cut in the name of the directory, but not in the metadata.
        stray = read_stray(fs, child) if aside and is_stray_name(name) else None
        whole = kraft.deleted[topic_id].name if kraft and topic_id in kraft.deleted else None
        topic = whole or (stray.partition.topic if stray else partition.topic)
        number = TopicPartition(topic, partition.partition)
        last_epoch = epochs[-1].epoch if epochs else -1
        found.append(LostPartition(child, number, topic_id, size_of(fs, child), last_epoch))
    return found


def _refusal(
    fs: Fs,
    path: str,
    name: str,
    topic_id: UUID,
    partitions: Sequence[LostPartition],
    kraft: KraftMetadata | None,
    ours: Mapping[str, TopicEntry],
) -> str | None:
    """Why the topic cannot come back."""
    first = partitions[0].path
    entry = ours.get(name)
    other = kraft.topics.get(name) if kraft else entry.topic_id if entry is not None and not entry.deleted else None
    if other is not None and other != topic_id:
        return f"{first}: a topic {name} was created again, with id {encode_id(other)}; delete or rename that one first"
    numbers = sorted(one.partition.partition for one in partitions)
    for one in partitions:
        target = os.path.join(path, str(one.partition))
        if one.is_aside and fs.exists(target):
            return f"{one.path}: {target} is there already"
        if numbers.count(one.partition.partition) > 1:
            return f"{one.path}: another directory has partition {one.partition}, too"
    if kraft is None:
        return None
    present = _present(kraft, topic_id)
    if other is None and numbers != list(range(len(numbers))):
        here = ", ".join(map(str, numbers))
        return f"{first}: only partitions {here} are here, and numbers must begin at 0 without a gap"
    told = [record["replicas"] for number, (_, record) in present.items() if number in numbers]
    if any(len(replicas) != 1 for replicas in told):
        return f"{first}: it has replicas on several brokers; it is brought back only where one broker has all of it"
    return None


def _present(kraft: KraftMetadata, topic_id: UUID) -> Mapping[int, tuple[int, Mapping[str, Any]]]:
    return kraft.partitions.get(topic_id, {})


def _returning(
    name: str,
    topic_id: UUID,
    partitions: Sequence[LostPartition],
    kraft: KraftMetadata | None,
    ours: Mapping[str, TopicEntry],
) -> TopicReturn:
    loses = []
    config: Mapping[str, str] | None = None
    if kraft is not None and (name in kraft.topics or topic_id in kraft.deleted):
        config = {} if name in kraft.topics else kraft.deleted[topic_id].config
    elif name in ours and ours[name].topic_id == topic_id:
        config = ours[name].config
    if config is None:
        config = KEPT
        loses.append("its configuration is not known any more: it gets retention.ms=-1 and retention.bytes=-1")
    if any(one.is_aside for one in partitions):
        loses.append("offsets that groups had committed of it are not restored")
    ordered = tuple(sorted(partitions, key=lambda one: one.partition))
    return TopicReturn(name, topic_id, ordered, config, tuple(loses))


def carry_out_undelete(fs: Fs, clock: Clock, plan: UndeletePlan) -> list[RepairPlan]:
    """Do what the plan says; returns what was repaired. The caller holds the directory's lock."""
    path = plan.path
    for topic in plan.topics:
        for one in topic.partitions:
            if one.is_aside:
                fs.rename(one.path, os.path.join(path, str(one.partition)))
    fs.fsync_dir(path)
    repairs = []
    for topic in plan.topics:
        for one in topic.partitions:
            target = os.path.join(path, str(one.partition))
            forget_stray(fs, target)
            repair = plan_repair(target, fs=fs)
            carry_out(repair, fs=fs, clock=clock)
            repairs.append(repair)
    kraft = read_kraft_metadata(fs, path)
    if kraft is not None:
        meta = read_meta_properties(fs, path)
        assert meta is not None
        records = [record for topic in plan.topics for record in _records(topic, kraft, meta)]
        if records:
            append_records(fs, kraft, records, clock.now_ms())
    else:
        entries = read_topics(fs, path)
        TopicsFile(fs, path, entries).change(
            {one.name: TopicEntry(one.topic_id, len(one.partitions), one.config) for one in plan.topics}
        )
    return repairs


def _records(
    topic: TopicReturn, kraft: KraftMetadata, meta: MetaProperties
) -> list[tuple[int, int, Mapping[str, Any]]]:
    """The topic's records in KRaft's log: this node has and leads every partition, in a new leader epoch."""
    if topic.name in kraft.topics:
        return []
    version = max((version for known in kraft.partitions.values() for version, _ in known.values()), default=1)
    found: list[tuple[int, int, Mapping[str, Any]]] = [
        (TOPIC_RECORD, 0, {"name": topic.name, "topicId": topic.topic_id.bytes})
    ]
    for one in topic.partitions:
        _, before = _present(kraft, topic.topic_id).get(one.partition.partition, (0, {"leaderEpoch": -1}))
        fields = {
            "partitionId": one.partition.partition,
            "topicId": topic.topic_id.bytes,
            "replicas": [meta.node_id],
            "isr": [meta.node_id],
            "removingReplicas": [],
            "addingReplicas": [],
            "leader": meta.node_id,
            "leaderRecoveryState": 0,
            "leaderEpoch": max(one.last_epoch, before["leaderEpoch"]) + 1,
            "partitionEpoch": 0,
            "directories": [meta.directory_id.bytes if meta.directory_id is not None else _NOTHING],
        }
        found.append((PARTITION_RECORD, version, fields))
    for key, value in sorted(topic.config.items()):
        fields = {"resourceType": TOPIC_RESOURCE, "resourceName": topic.name, "name": key, "value": value}
        found.append((CONFIG_RECORD, 0, fields))
    return found
