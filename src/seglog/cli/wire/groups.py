"""`seglog groups list|describe|delete|delete-offsets`: consumer groups, as kafka-consumer-groups shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import with_options
from seglog.cli.output import FINE, Out, fail, show_table
from seglog.cli.wire import clients as wire
from seglog.cli.wire.clients import Cluster
from seglog.core.errors import RequestFailedError

_ALL_GROUPS: Final = "--all-groups"
_STATES: Final = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
}


class Names(NamedTuple):
    """The groups that are meant."""

    names: Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="Groups.", show_default=False)] = None
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="GROUP", help="The same, by Kafka's option.", show_default=False),
    ] = None
    all_groups: Annotated[bool, typer.Option(_ALL_GROUPS, help="All that there are.")] = False

    def wanted(self, cluster: Cluster) -> list[str]:
        if self.all_groups:
            return sorted(group.group_id for group in _listed(cluster))
        return list(dict.fromkeys([*(self.names or ()), *(self.groups or ())]))


NO_NAMES: Final = Names()


class Position(NamedTuple):
    """Where a group is in a partition: None for what is not known; ``member`` has it assigned."""

    topic: str
    partition: int
    offset: int | None
    end: int | None
    member: Any

    @property
    def lag(self) -> int | None:
        return None if self.offset is None or self.end is None else max(0, self.end - self.offset)


@with_options
def list_groups(
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """All groups, with their states."""
    cluster = brokers.cluster()
    listed = sorted(_listed(cluster), key=lambda group: group.group_id)
    out = Out()
    if json:
        for group in listed:
            out.json({"group": group.group_id, "state": state_of(group), "type": _type(group)})
    else:
        rows = [(group.group_id, state_of(group), _type(group)) for group in listed]
        show_table(out, ("group", "state", "type"), rows)
    out.flush()
    return FINE


@with_options
def describe_groups(
    names: Names = NO_NAMES,
    offsets: Annotated[bool, typer.Option("--offsets", help="Offsets and lag: what is shown without options.")] = False,
    members: Annotated[bool, typer.Option("--members", help="Members and what is assigned to them.")] = False,
    state: Annotated[bool, typer.Option("--state", help="State, assignor, coordinator.")] = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Offsets and lag of groups; or their members, or states."""
    if offsets + members + state > 1:
        return fail("groups describe takes one of --offsets, --members and --state")
    cluster = brokers.cluster()
    wanted = names.wanted(cluster)
    if not wanted and not names.all_groups:
        return fail(f"groups describe needs the name of a group, or {_ALL_GROUPS}")
    out, code = Out(), FINE
    for name in wanted:
        group = describe(cluster, name)
        committed = committed_offsets(cluster, name)
        if group is None or (state_of(group) == "Dead" and not committed):
            code = fail(f"group {name}: there is no such group")
        elif members:
            _print_members(out, group, json=json)
        elif state:
            _print_state(out, group, json=json)
        else:
            _print_offsets(out, group, positions(cluster, group, committed), json=json)
    out.flush()
    return code


@with_options
def delete_groups(
    names: Names = NO_NAMES,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Delete groups that have no members, with their offsets."""
    cluster = brokers.cluster()
    wanted = names.wanted(cluster)
    if not wanted:
        return FINE if names.all_groups else fail(f"groups delete needs the name of a group, or {_ALL_GROUPS}")
    with cluster.errors("groups"):
        futures = cluster.admin.delete_consumer_groups(wanted, request_timeout=cluster.timeout)
    out, code = Out(), FINE
    for name, future in futures.items():
        reason = None
        try:
            cluster.result(future, f"group {name}")
        except RequestFailedError as error:
            reason, code = str(error), fail(error)
        if json:
            out.json({"group": name, "done": reason is None, "error": reason})
        elif reason is None:
            out.line(f"deleted {name}")
    out.flush()
    return code


@with_options
def delete_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.", show_default=False)],
    topics: Annotated[
        list[str],
        typer.Option("--topic", "-t", metavar="TOPIC[:0,2-4]", help="Of this topic, or these partitions of it."),
    ],
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Forget what a group has committed for topics to which none of its members is subscribed."""
    cluster = brokers.cluster()
    partitions = named_partitions(cluster, topics)
    with cluster.own_admin() as admin:
        answers = admin.delete_offsets(group, partitions)
    out, code = Out(), FINE
    for (topic, number), reason in answers.items():
        if reason is not None:
            code = fail(f"group {group}, topic {topic}, partition {number}: {reason}")
        if json:
            out.json({"group": group, "topic": topic, "partition": number, "error": reason})
        elif reason is None:
            out.line(f"deleted offset of {topic}-{number}")
    out.flush()
    return code


# What the cluster knows of groups


def _listed(cluster: Cluster) -> list[Any]:
    with cluster.errors("groups"):
        future = cluster.admin.list_consumer_groups(request_timeout=cluster.timeout)
    answer = cluster.result(future, "groups")
    for error in answer.errors:
        raise RequestFailedError(f"groups: {cluster.describe(error)}")
    return list(answer.valid)


def describe(cluster: Cluster, name: str) -> Any:
    """A group; None of one that is not there."""
    with cluster.errors(f"group {name}"):
        futures = cluster.admin.describe_consumer_groups([name], request_timeout=cluster.timeout)
    try:
        return cluster.result(futures[name], f"group {name}")
    except RequestFailedError as error:
        cause = error.__cause__
        if isinstance(cause, cluster.kafka.KafkaException):
            missing = cluster.kafka.KafkaError.GROUP_ID_NOT_FOUND
            if cause.args[0].code() == missing:
                return None
        raise


def committed_offsets(cluster: Cluster, name: str) -> dict[tuple[str, int], int]:
    """What a group has committed, for all partitions for which it has."""
    wanted = cluster.kafka.ConsumerGroupTopicPartitions(name)
    with cluster.errors(f"group {name}"):
        futures = cluster.admin.list_consumer_group_offsets([wanted], request_timeout=cluster.timeout)
    answer = cluster.result(futures[name], f"group {name}")
    found = {}
    for one in answer.topic_partitions:
        if one.error is not None:
            raise RequestFailedError(f"group {name}, {one.topic}-{one.partition}: {cluster.describe(one.error)}")
        if one.offset >= 0:
            found[one.topic, one.partition] = one.offset
    return dict(sorted(found.items()))


def named_partitions(cluster: Cluster, given: Sequence[str]) -> list[tuple[str, int]]:
    """``topic`` or ``topic:0,2-4``, of topics that are there."""
    found: list[tuple[str, int]] = []
    for text in given:
        topic, colon, which = text.partition(":")
        there = cluster.partitions([topic])[topic]
        wanted = wire.numbers([which], "--topic") if colon else there
        for number in wanted:
            if number not in there:
                raise RequestFailedError(f"topic {topic}: there is no partition {number}")
            found.append((topic, number))
    return found


def positions(cluster: Cluster, group: Any, committed: dict[tuple[str, int], int]) -> list[Position]:
    """Partitions that have an offset, or a member."""
    members = {
        (one.topic, one.partition): member
        for member in (group.members if group is not None else ())
        for one in (member.assignment.topic_partitions if member.assignment else ())
    }
    known = cluster.topics()
    wanted = sorted({*committed, *members})
    there = [one for one in wanted if one[1] in known.get(one[0], ())]
    ends = cluster.offsets(there, "latest")
    return [
        Position(*one, committed.get(one), ends[one].offset if one in ends else None, members.get(one))
        for one in wanted
    ]


def state_of(group: Any) -> str:
    """By the name that Kafka's own tool has for it."""
    if group is None:
        return "Dead"
    name = group.state.name if group.state is not None else "UNKNOWN"
    return _STATES.get(name, name.capitalize())


def _type(group: Any) -> str:
    kind = getattr(group, "type", None)
    return "-" if kind is None else str(kind.name).capitalize()


# What of it is shown


def _print_offsets(out: Out, group: Any, found: Sequence[Position], *, json: bool) -> None:
    name, state = group.group_id, state_of(group)
    if json:
        rows = [
            {
                "topic": one.topic,
                "partition": one.partition,
                "offset": one.offset,
                "end": one.end,
                "lag": one.lag,
                "member": one.member and one.member.member_id,
                "host": one.member and one.member.host,
                "client": one.member and one.member.client_id,
            }
            for one in found
        ]
        out.json({"group": name, "state": state, "partitions": rows})
        return
    lags = [one.lag for one in found if one.lag is not None]
    lag = f"{sum(lags):,}" if lags else "-"
    unknown = len(found) - len(lags) if lags else 0
    more = f" ({unknown} partitions without an offset)" if unknown else ""
    out.line(f"{name}: {state}, {len(group.members)} members, lag {lag}{more}")
    columns = ("topic", "partition", "offset", "end", "lag", "member", "host", "client")
    cells = [
        (
            *("-" if cell is None else cell for cell in (one.topic, one.partition, one.offset, one.end, one.lag)),
            *((one.member.member_id, one.member.host, one.member.client_id) if one.member else ("-", "-", "-")),
        )
        for one in found
    ]
    show_table(out, columns, cells, right=("partition", "offset", "end", "lag"))


def _print_members(out: Out, group: Any, *, json: bool) -> None:
    assigned = [
        [f"{one.topic}-{one.partition}" for one in (member.assignment.topic_partitions if member.assignment else ())]
        for member in group.members
    ]
    if json:
        rows = [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "host": member.host,
                "client": member.client_id,
                "partitions": partitions,
            }
            for member, partitions in zip(group.members, assigned, strict=True)
        ]
        out.json({"group": group.group_id, "state": state_of(group), "members": rows})
        return
    out.line(f"{group.group_id}: {state_of(group)}, {len(group.members)} members")
    cells = [
        (member.member_id, member.group_instance_id or "-", member.host, member.client_id, ",".join(partitions) or "-")
        for member, partitions in zip(group.members, assigned, strict=True)
    ]
    show_table(out, ("member", "instance", "host", "client", "partitions"), cells)


def _print_state(out: Out, group: Any, *, json: bool) -> None:
    at = group.coordinator
    coordinator = f"{at.host}:{at.port} ({at.id})" if at is not None else "-"
    if json:
        document = {"group": group.group_id, "state": state_of(group), "assignor": group.partition_assignor}
        out.json({**document, "coordinator": at and at.id, "members": len(group.members)})
        return
    row = (group.group_id, state_of(group), group.partition_assignor or "-", coordinator, len(group.members))
    show_table(out, ("group", "state", "assignor", "coordinator", "members"), [row], right=("members",))
