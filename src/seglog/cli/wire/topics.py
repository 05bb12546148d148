"""`seglog topics list|describe|create|delete|alter`: topics of a cluster, as kafka-topics shows and changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import with_options
from seglog.cli.output import FAILED, FINE, Out, fail, format_size, show_table
from seglog.cli.wire import clients as wire
from seglog.cli.wire.clients import Cluster
from seglog.core.errors import RequestFailedError


class Names(NamedTuple):
    """The topics that are meant."""

    names: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics.", show_default=False)] = None
    topics: wire.TopicsToo = None

    def all(self) -> list[str]:
        return [*(self.names or ()), *(self.topics or ())]


_NO_NAMES: Final = Names()
_ExcludeInternal = Annotated[bool, typer.Option("--exclude-internal", help="Leave out Kafka's own topics.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Ask whether it could be done, and change nothing.")]


@with_options
def list_topics(
    exclude_internal: _ExcludeInternal = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """The names of all topics."""
    cluster = brokers.cluster()
    out = Out()
    for name, partitions in cluster.topics().items():
        if exclude_internal and name in wire.INTERNAL:
            continue
        if json:
            out.json({"topic": name, "partitions": len(partitions), "isInternal": name in wire.INTERNAL})
        else:
            out.line(name)
    out.flush()
    return FINE


@with_options
def describe_topics(
    names: Names = _NO_NAMES,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated-partitions", help="Only partitions that lack in-sync replicas.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a leader.")
    ] = False,
    sizes: Annotated[bool, typer.Option("--sizes", help="How much each partition has on its leader's disk.")] = False,
    exclude_internal: _ExcludeInternal = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Partitions of topics with leader, replicas and what the topic's own configuration says."""
    cluster = brokers.cluster()
    wanted = names.all() or [name for name in cluster.topics() if not (exclude_internal and name in wire.INTERNAL)]
    described = _described(cluster, wanted)
    configs = _configs(cluster, wanted)
    on_disk: Mapping[tuple[str, int, int], int] = {}
    if sizes:
        with cluster.own_admin() as admin:
            on_disk = admin.partition_sizes()
    out = Out()
    for topic in described:
        rows = [
            _row(topic.name, partition, on_disk)
            for partition in topic.partitions
            if not (under_replicated and len(partition.isr) >= len(partition.replicas))
            and not (unavailable and partition.leader is not None)
        ]
        if json:
            document = {"topic": topic.name, "topicId": _id(topic), "isInternal": topic.is_internal}
            out.json({**document, "configs": configs[topic.name], "partitions": rows})
        elif rows or not (under_replicated or unavailable):
            _print(out, topic, configs[topic.name], rows, sizes=sizes)
    out.flush()
    return FINE


def _described(cluster: Cluster, names: Sequence[str]) -> list[Any]:
    if not names:
        return []
    with cluster.errors("topics"):
        asked = cluster.admin.describe_topics(
            cluster.kafka.TopicCollection(names), include_authorized_operations=False, request_timeout=cluster.timeout
        )
    return [cluster.result(future, f"topic {name}") for name, future in asked.items()]


def _configs(cluster: Cluster, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """What is set for each topic itself."""
    api = cluster.api
    resources = [api.ConfigResource(api.ResourceType.TOPIC, name) for name in names]
    if not resources:
        return {}
    own = api.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    with cluster.errors("configs"):
        futures = cluster.admin.describe_configs(resources, request_timeout=cluster.timeout)
    found = {}
    for resource, future in futures.items():
        entries = cluster.result(future, f"topic {resource.name}")
        found[resource.name] = {name: entry.value for name, entry in sorted(entries.items()) if entry.source == own}
    return found


def _id(topic: Any) -> str:
    """As Kafka writes it: in the URL's alphabet of base64."""
    return str(topic.topic_id).replace("+", "-").replace("/", "_")


def _row(topic: str, partition: Any, on_disk: Mapping[tuple[str, int, int], int]) -> dict[str, Any]:
    leader = None if partition.leader is None else partition.leader.id
    row = {
        "partition": partition.id,
        "leader": leader,
        "replicas": [node.id for node in partition.replicas],
        "isr": [node.id for node in partition.isr],
    }
    if on_disk and leader is not None:
        row["size"] = on_disk.get((topic, partition.id, leader))
    return row


def _print(out: Out, topic: Any, configs: Mapping[str, str], rows: Sequence[dict[str, Any]], *, sizes: bool) -> None:
    replication = len(topic.partitions[0].replicas) if topic.partitions else 0
    shown = ",".join(f"{name}={value}" for name, value in configs.items())
    out.line(
        f"{topic.name}: id {_id(topic)}, partitions {len(topic.partitions)}, replication factor {replication}"
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
    names: Names = _NO_NAMES,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, help="How many.", show_default="the broker's"),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", metavar="N", min=1, help="Replicas.", show_default="the broker's"),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A configuration's key.", show_default=False),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Fine, if it is there already.")] = False,
    dry_run: _DryRun = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Make topics."""
    wanted = names.all()
    if not wanted:
        return fail("topics create needs the name of a topic")
    configs = wire.key_values(config, "--config")
    cluster = brokers.cluster()
    new = [
        cluster.api.NewTopic(
            name, num_partitions=partitions or -1, replication_factor=replication_factor or -1, config=configs
        )
        for name in wanted
    ]
    with cluster.errors("topics"):
        futures = cluster.admin.create_topics(
            new, operation_timeout=cluster.timeout, request_timeout=cluster.timeout, validate_only=dry_run
        )
    passed = cluster.kafka.KafkaError.TOPIC_ALREADY_EXISTS if if_not_exists else None
    return _report(cluster, futures, ("would create" if dry_run else "created"), passed=passed, json=json)


@with_options
def delete_topics(
    names: Names = _NO_NAMES,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Fine, if it is not there.")] = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Delete topics with all that is in them."""
    wanted = names.all()
    if not wanted:
        return fail("topics delete needs the name of a topic")
    cluster = brokers.cluster()
    with cluster.errors("topics"):
        futures = cluster.admin.delete_topics(
            wanted, operation_timeout=cluster.timeout, request_timeout=cluster.timeout
        )
    passed = cluster.kafka.KafkaError.UNKNOWN_TOPIC_OR_PART if if_exists else None
    return _report(cluster, futures, "deleted", passed=passed, json=json)


@with_options
def alter_topics(
    partitions: Annotated[int, typer.Option("--partitions", "-p", metavar="N", min=1, help="How many there shall be.")],
    names: Names = _NO_NAMES,
    dry_run: _DryRun = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Give topics more partitions. Keys then go to other partitions than before."""
    wanted = names.all()
    if not wanted:
        return fail("topics alter needs the name of a topic")
    cluster = brokers.cluster()
    new = [cluster.api.NewPartitions(name, partitions) for name in wanted]
    with cluster.errors("topics"):
        futures = cluster.admin.create_partitions(
            new, operation_timeout=cluster.timeout, request_timeout=cluster.timeout, validate_only=dry_run
        )
    return _report(cluster, futures, "would alter" if dry_run else "altered", passed=None, json=json)


def _report(cluster: Cluster, futures: Mapping[str, Any], done: str, *, passed: int | None, json: bool) -> int:
    """A line for each topic; an error of one does not hide what came of the others."""
    out = Out()
    code = FINE
    for name, future in futures.items():
        reason = None
        did = True
        try:
            cluster.result(future, f"topic {name}")
        except RequestFailedError as error:
            cause = error.__cause__
            did = False
            if passed is None or not isinstance(cause, cluster.kafka.KafkaException) or cause.args[0].code() != passed:
                reason, code = str(error), FAILED
                fail(reason)
        if json:
            out.json({"topic": name, "done": did, "error": reason})
        elif did:
            out.line(f"{done} {name}")
    out.flush()
    return code
