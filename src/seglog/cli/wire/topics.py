"""`seglog topics list|describe|create|delete|alter`: topics of a cluster, as kafka-topics shows and changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from seglog.cli.options import JsonLines, OptionError, Yes, confirm, with_options
from seglog.cli.output import FINE, Out, format_size, name_all, show_table
from seglog.cli.wire.clients import DEFAULT_BROKERS, NO_TOPICS, Brokers, Cluster, DryRun, TopicNames, show_dry_run
from seglog.cli.wire.configs import parse_configs
from seglog.cluster.reassignment_plan import Place
from seglog.core.topic_names import INTERNAL_TOPICS

_ExcludeInternal = Annotated[bool, typer.Option("--exclude-internal", help="Omit Kafka's internal topics.")]
_SizeKey = tuple[str, int, int]
"""Topic, partition, broker."""


def _needed(names: TopicNames, command: str) -> list[str]:
    found = names.all()
    if not found:
        raise OptionError(f"topics {command} needs the name of a topic")
    return found


@with_options
def list_topics(
    exclude_internal: _ExcludeInternal = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """List the names of all topics."""
    with Out() as out:
        for name, partitions in brokers.cluster().topics().items():
            if exclude_internal and name in INTERNAL_TOPICS:
                continue
            if json:
                out.json({"topic": name, "partitions": len(partitions), "isInternal": name in INTERNAL_TOPICS})
            else:
                out.line(name)
    return FINE


@with_options
def describe_topics(
    names: TopicNames = NO_TOPICS,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only partitions with replicas out of sync.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a leader.")
    ] = False,
    sizes: Annotated[bool, typer.Option("--sizes", help="Show each partition's size on its leader's disk.")] = False,
    exclude_internal: _ExcludeInternal = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Show partitions with leader, replicas and ISR, and the topics' own configuration."""
    cluster = brokers.cluster()
    found = names.all() or [name for name in cluster.topics() if not (exclude_internal and name in INTERNAL_TOPICS)]
    with Out() as out:
        for document in topic_documents(cluster, found, sizes=sizes):
            rows = [
                row
                for row in document["partitions"]
                if not (under_replicated and len(row["isr"]) >= len(row["replicas"]))
                and not (unavailable and row["leader"] is not None)
            ]
            if json:
                out.json({**document, "partitions": rows})
            elif rows or not (under_replicated or unavailable):
                _print(out, document, rows, sizes=sizes)
    return FINE


def topic_documents(cluster: Cluster, names: Sequence[str], *, sizes: bool) -> list[dict[str, Any]]:
    """Topics, their partitions and the keys that they set. ``sizes``: also the bytes on the leaders' disks."""
    described = _described(cluster, names)
    configs = _configs(cluster, names)
    on_disk: Mapping[_SizeKey, int] = {}
    if sizes:
        with cluster.own_admin() as admin:
            on_disk = admin.partition_sizes()
    return [
        {
            "topic": topic.name,
            "topicId": _id(topic),
            "isInternal": topic.is_internal,
            "configs": configs[topic.name],
            "partitions": [_row((topic.name, one.id), one, on_disk) for one in topic.partitions],
        }
        for topic in described
    ]


def _described(cluster: Cluster, names: Sequence[str]) -> list[Any]:
    if not names:
        return []
    topics = cluster.kafka.TopicCollection(names)
    futures = cluster.ask("describe_topics", "topics", topics, include_authorized_operations=False)
    return [cluster.result(future, f"topic {name}") for name, future in futures.items()]


def _configs(cluster: Cluster, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The keys that each topic itself sets."""
    api = cluster.api
    resources = [api.ConfigResource(api.ResourceType.TOPIC, name) for name in names]
    if not resources:
        return {}
    own = api.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    found = {}
    for resource, future in cluster.ask("describe_configs", "configs", resources).items():
        entries = cluster.result(future, f"topic {resource.name}")
        found[resource.name] = {name: entry.value for name, entry in sorted(entries.items()) if entry.source == own}
    return found


def _id(topic: Any) -> str:
    """As Kafka writes it: in the URL's alphabet of base64."""
    return str(topic.topic_id).replace("+", "-").replace("/", "_")


def _row(place: Place, partition: Any, on_disk: Mapping[_SizeKey, int]) -> dict[str, Any]:
    leader = None if partition.leader is None else partition.leader.id
    row = {
        "partition": partition.id,
        "leader": leader,
        "replicas": [node.id for node in partition.replicas],
        "isr": [node.id for node in partition.isr],
    }
    if on_disk and leader is not None:
        row["size"] = on_disk.get((*place, leader))
    return row


def _print(out: Out, topic: Mapping[str, Any], rows: Sequence[dict[str, Any]], *, sizes: bool) -> None:
    partitions = topic["partitions"]
    replication = len(partitions[0]["replicas"]) if partitions else 0
    shown = ",".join(f"{name}={value}" for name, value in topic["configs"].items())
    out.line(
        f"{topic['topic']}: id {topic['topicId']}, partitions {len(partitions)}, replication factor {replication}"
        f"{f', configs {shown}' if shown else ''}"
    )
    columns = ["partition", "leader", "replicas", "isr", *(["size"] if sizes else [])]
    cells = [
        [
            row["partition"],
            "none" if row["leader"] is None else row["leader"],
            ",".join(map(str, row["replicas"])),
            ",".join(map(str, row["isr"])),
            *([format_size(row["size"]) if row.get("size") is not None else "-"] if sizes else []),
        ]
        for row in rows
    ]
    show_table(out, columns, cells, right=("partition", "leader", "size"))


@with_options
def create_topics(
    names: TopicNames = NO_TOPICS,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, help="Partitions.", show_default="the broker's"),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", metavar="N", min=1, help="Replicas.", show_default="the broker's"),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set a key of the topic.", show_default=False),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    dry_run: DryRun = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Create topics."""
    wanted = _needed(names, "create")
    settings = {
        "num_partitions": partitions or -1,
        "replication_factor": replication_factor or -1,
        "config": parse_configs(config, "--config"),
    }
    cluster = brokers.cluster()
    new = [cluster.api.NewTopic(name, **settings) for name in wanted]
    futures = cluster.ask("create_topics", "topics", new, operation_timeout=cluster.timeout, validate_only=dry_run)
    ignored = cluster.kafka.KafkaError.TOPIC_ALREADY_EXISTS if if_not_exists else None
    return cluster.report(futures, "topic", "would create" if dry_run else "created", ignored=ignored, json=json)


@with_options
def delete_topics(
    names: TopicNames = NO_TOPICS,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if the topic does not exist.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Delete topics with all their records."""
    wanted = _needed(names, "delete")
    cluster = brokers.cluster()
    if dry_run:
        known = cluster.topics()
        return show_dry_run("topic", wanted, known, json=json, ignored=if_exists)
    confirm(f"Delete {name_all('topic', wanted)} with all records?", yes=yes)
    futures = cluster.ask("delete_topics", "topics", wanted, operation_timeout=cluster.timeout)
    ignored = cluster.kafka.KafkaError.UNKNOWN_TOPIC_OR_PART if if_exists else None
    return cluster.report(futures, "topic", "deleted", ignored=ignored, json=json)


@with_options
def alter_topics(
    partitions: Annotated[int, typer.Option("--partitions", "-p", metavar="N", min=1, help="The new number.")],
    names: TopicNames = NO_TOPICS,
    dry_run: DryRun = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Add partitions to topics. Afterwards, keys map to other partitions than before."""
    wanted = _needed(names, "alter")
    cluster = brokers.cluster()
    new = [cluster.api.NewPartitions(name, partitions) for name in wanted]
    futures = cluster.ask("create_partitions", "topics", new, operation_timeout=cluster.timeout, validate_only=dry_run)
    return cluster.report(futures, "topic", "would alter" if dry_run else "altered", json=json)
