"""What brokers can tell of a topic: no segments, but configurations, offsets, times, sizes and transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from seglog.cli.explain.partitions import Question
from seglog.cli.explain.sentences import config_statement
from seglog.cli.explain.words import Statement, duration, moment, say
from seglog.cli.offline.coordinator_state import GroupPosition, Groups
from seglog.cli.output import format_size
from seglog.cli.wire.clients import Cluster
from seglog.cli.wire.configs import ConfigEntity, read_configs
from seglog.cli.wire.groups import committed_offsets
from seglog.core.config import TOPIC_KEYS
from seglog.core.types import TopicPartition
from seglog.storage.offline.topic_configs import ConfigLayer, TopicConfig, merge

_DEFAULT_SOURCE = 5


def asked_config(cluster: Cluster) -> Callable[[str], ConfigLayer]:
    """Asks for the keys of a topic that are not Kafka's defaults."""

    def ask(topic: str) -> ConfigLayer:
        values = {
            one.name: one.value
            for one in read_configs(cluster, ConfigEntity("topic", topic))
            if one.value is not None and one.source != _DEFAULT_SOURCE and one.name in TOPIC_KEYS
        }
        return ConfigLayer("the brokers", values, {})

    return ask


def asked_positions(cluster: Cluster) -> Callable[[str], Groups]:
    """Asks a group's coordinator for its offsets."""

    def ask(group: str) -> Groups:
        found = committed_offsets(cluster, group)
        return {
            TopicPartition(*place): GroupPosition(group, offset, None, "by its coordinator")
            for place, offset in found.items()
        }

    return ask


def explain_topic(
    cluster: Cluster, topic: str, question: Question, numbers: Collection[int] | None = None
) -> Iterator[tuple[TopicPartition, list[Statement]]]:
    """Each partition of a topic, or those of ``numbers``. `RequestFailedError`."""
    places = [(topic, one) for one in cluster.partitions([topic])[topic] if numbers is None or one in numbers]
    config = merge([asked_config(cluster)(topic)])
    first, last = cluster.first(places), cluster.ends(places)
    stable = cluster.offsets(places, "latest", read_committed=True)
    oldest, newest = cluster.offsets(places, 0), cluster.offsets(places, "max-timestamp")
    groups = asked_positions(cluster)(question.group) if question.group is not None else None
    found_by_time = cluster.offsets(places, question.timestamp) if question.timestamp is not None else {}
    sizes = _sizes(cluster, topic)
    for place in places:
        partition = TopicPartition(*place)
        start, end, last_stable = first[place], last[place], stable[place].offset
        statements = [
            config_statement(config),
            _offsets(start, end, last_stable),
            *_retention(config, question, start, oldest[place], newest[place], sizes.get(place[1])),
        ]
        if last_stable < end:
            statements.append(_open_transaction(partition, last_stable))
        if groups is not None and question.group is not None:
            statements.append(_lag(question.group, groups.get(partition), start, end, last_stable))
        if question.offset is not None:
            statements.append(_offset(question.offset, start, end, last_stable))
        if question.timestamp is not None:
            answer = found_by_time[place].offset
            text = (
                f"no record is at or after {moment(question.timestamp, question.forecast.now_ms)}"
                if answer < 0
                else f"the first record in the order of offsets that is not earlier than {question.timestamp} is at "
                f"offset {answer}"
            )
            statements.append(say("look-up", "ListOffsets", text, foundOffset=None if answer < 0 else answer))
        yield partition, statements


def _sizes(cluster: Cluster, topic: str) -> dict[int, int]:
    """The bytes of each partition's largest replica."""
    found: dict[int, int] = {}
    with cluster.own_admin() as admin:
        for (name, number, _), size in admin.partition_sizes().items():
            if name == topic:
                found[number] = max(found.get(number, 0), size)
    return found


def _offsets(start: int, end: int, stable: int) -> Statement:
    text = f"the log has offsets {start} to the high watermark {end} (exclusive)"
    if stable < end:
        text += f"; read_committed consumers read up to the last stable offset {stable}"
    return say("offsets", "high watermark", text, logStartOffset=start, highWatermark=end, lastStableOffset=stable)


def _retention(
    config: TopicConfig, question: Question, start: int, oldest: object, newest: object, size: int | None
) -> Iterator[Statement]:
    log, now_ms = config.log, question.forecast.now_ms
    first_ms, newest_ms = int(getattr(oldest, "timestamp", -1)), int(getattr(newest, "timestamp", -1))
    if not log.delete:
        policy = ",".join(sorted(log.cleanup_policy)) or "empty"
        yield say("retention", "cleanup.policy", f"retention deletes nothing: cleanup.policy is {policy}")
        return
    if log.retention_ms < 0:
        yield say("retention", "retention.ms", "nothing goes by its age: retention.ms is -1")
    elif newest_ms > now_ms:
        yield say(
            "retention",
            "retention.ms",
            f"a record has the timestamp {moment(newest_ms, now_ms)}: its segment and all later ones stay until "
            f"{duration(log.retention_ms)} after that. `seglog explain` on the broker's disk names the segment",
            maxTimestamp=newest_ms,
        )
    elif 0 <= first_ms < now_ms - log.retention_ms:
        yield say(
            "retention",
            "retention.ms",
            f"the oldest record, at offset {start} or after it, is of {moment(first_ms, now_ms)}, older than "
            f"retention.ms ({duration(log.retention_ms)}), and still there: a segment goes as a whole, "
            f"{duration(log.retention_ms)} after its newest record, and a segment is closed after segment.ms "
            f"({duration(log.segment_ms)}) or at segment.bytes ({format_size(log.segment_bytes)}). Records can so "
            f"live for {duration(log.retention_ms + log.segment_ms)}",
            firstTimestamp=first_ms,
        )
    elif first_ms >= 0:
        yield say(
            "retention",
            "retention.ms",
            f"no record is too old: the oldest is of {moment(first_ms, now_ms)}, and retention.ms is "
            f"{duration(log.retention_ms)}",
            firstTimestamp=first_ms,
        )
    if log.retention_bytes < 0:
        yield say("retention", "retention.bytes", "nothing goes by the size: retention.bytes is -1")
    elif size is not None:
        yield say(
            "retention",
            "retention.bytes",
            f"the partition has {format_size(size)}, and retention.bytes allows {format_size(log.retention_bytes)} for "
            "each partition; the oldest segment goes when the rest alone has as much",
            bytes=size,
        )


def _open_transaction(partition: TopicPartition, stable: int) -> Statement:
    text = (
        f"a transaction is open since offset {stable}, or its marker is not replicated yet; read_committed consumers "
        f"and the cleaner stop there. `seglog transactions describe-producers --topic {partition.topic} --partition "
        f"{partition.partition}` names the producer, and `seglog transactions find-hanging` says whether it hangs"
    )
    return say("transactions", "last stable offset", text, firstOffset=stable)


def _lag(group: str, position: GroupPosition | None, start: int, end: int, stable: int) -> Statement:
    if position is None:
        return say("lag", "committed offset", f"group {group} has no committed offset of it", group=group)
    lag = end - position.offset
    text = f"group {group} has committed offset {position.offset}; the high watermark is {end}, a lag of {lag}"
    rule = "high watermark"
    if position.offset < start:
        rule = "log start offset"
        text += f". Offsets below {start} are gone: the consumer continues where auto.offset.reset says"
    elif stable <= position.offset < end:
        rule = "last stable offset"
        text += f". With read_committed nothing can be read beyond {stable} until the open transaction ends"
    elif lag > 0:
        rule = "backlog"
        text += (
            ". If the consumer reads no more records, the last offsets are transaction markers, aborted records, or "
            "were compacted: `seglog explain` on the broker's disk with --group says which"
        )
    return say("lag", rule, text, group=group, committed=position.offset, lag=lag)


def _offset(offset: int, start: int, end: int, stable: int) -> Statement:
    if offset < start:
        text = f"offset {offset} is below the log start offset {start}: retention or DeleteRecords has removed it"
        return say("look-up", "log start offset", text)
    if offset >= end:
        return say("look-up", "high watermark", f"offset {offset} is not there yet: the high watermark is {end}")
    text = f"offset {offset} is in the log"
    if offset >= stable:
        return say("look-up", "last stable offset", f"{text}, but above the last stable offset {stable}")
    return say("look-up", "found", f"{text}; if it has no record, consumers get the next one")
