"""`seglog groups list|describe|delete|delete-offsets`: consumer groups, as kafka-consumer-groups shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import JsonLines, OptionError, Yes, confirm, with_options
from seglog.cli.output import FINE, Out, fail, name_all, show_table
from seglog.cli.wire.clients import DEFAULT_BROKERS, Brokers, Cluster, DryRun, code_of, show_dry_run
from seglog.cli.wire.partition_lists import named_partitions
from seglog.cluster.reassignment_plan import Place
from seglog.core.errors import RequestFailedError

if TYPE_CHECKING:
    from seglog.client.admin import GroupListing
    from seglog.client.consumer_groups import ConsumerGroup, ConsumerGroupMember

_ALL_GROUPS: Final = "--all-groups"
_CONSUMER: Final = "Consumer"
_LISTED: Final = ("group", "state", "type", "protocol")
_STATES: Final = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
}


class GroupNames(NamedTuple):
    """Groups as arguments, or by Kafka's options."""

    names: Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="Groups.", show_default=False)] = None
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="GROUP", help="The same, by Kafka's option.", show_default=False),
    ] = None
    all_groups: Annotated[bool, typer.Option(_ALL_GROUPS, help="All groups.")] = False

    def found(self, cluster: Cluster, command: str) -> list[str]:
        """The groups named; raises `OptionError` if none is."""
        if self.all_groups:
            return [group.group for group in listed_groups(cluster)]
        found = list(dict.fromkeys([*(self.names or ()), *(self.groups or ())]))
        if not found:
            raise OptionError(f"groups {command} needs the name of a group, or {_ALL_GROUPS}")
        return found


NO_GROUPS: Final = GroupNames()


class GroupPosition(NamedTuple):
    """Committed offset and end of a partition, None if unknown, and the member that reads it."""

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
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """List all groups, with their states, types and protocols. The protocol of Connect's workers is connect."""
    rows = listed_groups(brokers.cluster())
    with Out() as out:
        if json:
            for row in rows:
                out.json(row._asdict())
        else:
            show_table(out, _LISTED, [[cell or "-" for cell in row] for row in rows])
    return FINE


@with_options
def describe_groups(
    names: GroupNames = NO_GROUPS,
    offsets: Annotated[bool, typer.Option("--offsets", help="Offsets and lag (the default).")] = False,
    members: Annotated[bool, typer.Option("--members", help="Members and their partitions.")] = False,
    state: Annotated[bool, typer.Option("--state", help="State, assignor, coordinator.")] = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Show offsets and lag of groups, or their members, or their states; of a consumer group (KIP-848) also epochs,
    target assignments and subscriptions."""
    if offsets + members + state > 1:
        return fail("groups describe takes only one of --offsets, --members and --state")
    cluster = brokers.cluster()
    code = FINE
    with Out() as out:
        for name in names.found(cluster, "describe"):
            group = describe(cluster, name)
            committed = committed_offsets(cluster, name)
            if group is None or (state_of(group) == "Dead" and not committed):
                code = fail(f"group {name} does not exist")
                continue
            epochs = cluster.consumer_group(name) if _type(group) == _CONSUMER else None
            if members:
                _print_members(out, group, epochs, json=json)
            elif state:
                _print_state(out, group, epochs, json=json)
            else:
                _print_offsets(out, group, epochs, positions(cluster, group, committed), json=json)
    return code


@with_options
def delete_groups(
    names: GroupNames = NO_GROUPS,
    yes: Yes = False,
    dry_run: DryRun = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Delete groups without members, and their offsets."""
    cluster = brokers.cluster()
    wanted = names.found(cluster, "delete")
    if dry_run:
        return show_dry_run("group", wanted, {one.group for one in listed_groups(cluster)}, json=json)
    if wanted:
        confirm(f"Delete {name_all('group', wanted)} with all offsets?", yes=yes)
    futures = cluster.ask("delete_consumer_groups", "groups", wanted) if wanted else {}
    return cluster.report(futures, "group", "deleted", json=json)


@with_options
def delete_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.", show_default=False)],
    topics: Annotated[
        list[str],
        typer.Option("--topic", "-t", metavar="TOPIC[:0,2-4]", help="A topic, or partitions of it."),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Delete a group's offsets for topics that none of its members subscribes to."""
    cluster = brokers.cluster()
    partitions = named_partitions(cluster.topics(), topics, "--topic")
    if dry_run:
        return _show_offsets(group, partitions, committed_offsets(cluster, group), json=json)
    confirm(f"Delete the offsets of group {group} for {name_all('partition', _names(partitions))}?", yes=yes)
    code = FINE
    with cluster.own_admin() as admin, Out() as out:
        for (topic, number), reason in admin.delete_offsets(group, partitions).items():
            if reason is not None:
                code = fail(f"group {group}, topic {topic}, partition {number}: {reason}")
            if json:
                out.json({"group": group, "topic": topic, "partition": number, "error": reason})
            elif reason is None:
                out.line(f"deleted offset of {topic}-{number}")
    return code


# Requests


def listed_groups(cluster: Cluster) -> list[GroupListing]:
    """All groups by name. The library leaves out those of other protocols, such as Connect's."""
    if cluster.has_own_client:
        with cluster.own_admin() as admin:
            return admin.groups()
    answer = cluster.result(cluster.ask("list_consumer_groups", "groups"), "groups")
    for error in answer.errors:
        raise RequestFailedError(f"groups: {cluster.describe(error)}")
    from seglog.client.admin import GroupListing

    found = [GroupListing(one.group_id, state_of(one), _type(one).lower(), "consumer") for one in answer.valid]
    return sorted(found)


def _names(partitions: Iterable[Place]) -> list[str]:
    return [f"{topic}-{number}" for topic, number in partitions]


def _show_offsets(group: str, partitions: Iterable[Place], committed: Mapping[Place, int], *, json: bool) -> int:
    """What `delete_offsets` would delete."""
    with Out() as out:
        for place in partitions:
            if json:
                out.json({"group": group, "topic": place[0], "partition": place[1], "offset": committed.get(place)})
            elif place in committed:
                out.line(f"would delete offset {committed[place]} of {place[0]}-{place[1]}")
    return FINE


def describe(cluster: Cluster, name: str) -> Any:
    """The description of a group; None if it does not exist."""
    futures = cluster.ask("describe_consumer_groups", f"group {name}", [name])
    try:
        return cluster.only_result(futures, f"group {name}")
    except RequestFailedError as error:
        if code_of(error) == cluster.kafka.KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise


def committed_offsets(cluster: Cluster, name: str) -> dict[Place, int]:
    """All offsets that a group has committed."""
    found = group_offsets(cluster, "list_consumer_group_offsets", name)
    return dict(sorted((place, offset) for place, offset in found.items() if offset >= 0))


def group_offsets(
    cluster: Cluster, request: str, name: str, partitions: Sequence[Any] | None = None
) -> dict[Place, int]:
    """Send a request about a group's offsets; returns those of the response. Raises the first error of a partition."""
    asked = cluster.kafka.ConsumerGroupTopicPartitions(name, partitions)
    answer = cluster.only_result(cluster.ask(request, f"group {name}", [asked]), f"group {name}")
    for one in answer.topic_partitions:
        if one.error is not None:
            raise RequestFailedError(f"group {name}, {one.topic}-{one.partition}: {cluster.describe(one.error)}")
    return {(one.topic, one.partition): one.offset for one in answer.topic_partitions}


def positions(
    cluster: Cluster, group: Any, committed: Mapping[Place, int], *, read_committed: bool = False
) -> list[GroupPosition]:
    """The partitions that have a committed offset or a member. ``read_committed``: the ends are the last stable
    offsets, so that the lag is of records that such a consumer can read now."""
    members = {
        (one.topic, one.partition): member
        for member in (group.members if group is not None else ())
        for one in (member.assignment.topic_partitions if member.assignment else ())
    }
    known = cluster.topics()
    wanted = sorted({*committed, *members})
    there = [one for one in wanted if one[1] in known.get(one[0], ())]
    ends = {at: one.offset for at, one in cluster.offsets(there, "latest", read_committed=read_committed).items()}
    return [GroupPosition(*one, committed.get(one), ends.get(one), members.get(one)) for one in wanted]


def state_of(group: Any) -> str:
    """The state of a group, by the name that Kafka's own tool prints."""
    if group is None:
        return "Dead"
    name = group.state.name if group.state is not None else "UNKNOWN"
    return _STATES.get(name, name.capitalize())


def _type(group: Any) -> str:
    kind = getattr(group, "type", None)
    return "-" if kind is None else str(kind.name).capitalize()


# Output


def _print_offsets(
    out: Out, group: Any, epochs: ConsumerGroup | None, found: Sequence[GroupPosition], *, json: bool
) -> None:
    name, state = group.group_id, _state(group, epochs)
    if json:
        out.json(group_document(group, epochs, found))
        return
    lags = [one.lag for one in found if one.lag is not None]
    lag = f"{sum(lags):,}" if lags else "-"
    unknown = len(found) - len(lags) if lags else 0
    more = f" ({unknown} partitions without an offset)" if unknown else ""
    out.line(f"{name}: {state}, {len(group.members)} members, lag {lag}{more}{_epochs_text(epochs)}")
    columns = ("topic", "partition", "offset", "end", "lag", "member", "host", "client")
    cells = [
        (
            *("-" if cell is None else cell for cell in (one.topic, one.partition, one.offset, one.end, one.lag)),
            *((one.member.member_id, one.member.host, one.member.client_id) if one.member else ("-", "-", "-")),
        )
        for one in found
    ]
    show_table(out, columns, cells, right=("partition", "offset", "end", "lag"))


def group_document(group: Any, epochs: ConsumerGroup | None, found: Sequence[GroupPosition]) -> dict[str, object]:
    """A group with offsets and lag."""
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
    return {"group": group.group_id, "state": _state(group, epochs), **_epochs_json(epochs), "partitions": rows}


def _print_members(out: Out, group: Any, epochs: ConsumerGroup | None, *, json: bool) -> None:
    assigned = [
        [f"{one.topic}-{one.partition}" for one in (member.assignment.topic_partitions if member.assignment else ())]
        for member in group.members
    ]
    more = [None if epochs is None else epochs.members.get(member.member_id) for member in group.members]
    if json:
        rows = [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "host": member.host,
                "client": member.client_id,
                "partitions": partitions,
                **_member_json(details),
            }
            for member, partitions, details in zip(group.members, assigned, more, strict=True)
        ]
        out.json({"group": group.group_id, "state": _state(group, epochs), **_epochs_json(epochs), "members": rows})
        return
    out.line(f"{group.group_id}: {_state(group, epochs)}, {len(group.members)} members{_epochs_text(epochs)}")
    columns: tuple[str, ...] = ("member", "instance", "host", "client", "partitions")
    cells: list[tuple[object, ...]] = [
        (member.member_id, member.group_instance_id or "-", member.host, member.client_id, ",".join(partitions) or "-")
        for member, partitions in zip(group.members, assigned, strict=True)
    ]
    if epochs is not None:
        columns += ("epoch", "target", "subscription")
        cells = [(*row, *_member_cells(details)) for row, details in zip(cells, more, strict=True)]
        if {details.is_upgraded for details in more if details is not None} == {False, True}:  # on its way to KIP-848
            columns += ("upgraded",)
            cells = [(*row, _upgraded(details)) for row, details in zip(cells, more, strict=True)]
    show_table(out, columns, cells, right=("epoch",))


def _member_json(member: ConsumerGroupMember | None) -> dict[str, object]:
    if member is None:
        return {}
    return {
        "epoch": member.epoch,
        "target": [f"{topic}-{number}" for topic, number in member.target],
        "topics": list(member.topics),
        "regex": member.regex,
        "upgraded": member.is_upgraded,
    }


def _member_cells(member: ConsumerGroupMember | None) -> tuple[object, str, str]:
    """Epoch, target assignment and subscription; dashes for a member that has joined or left meanwhile."""
    if member is None:
        return "-", "-", "-"
    target = ",".join(f"{topic}-{number}" for topic, number in member.target)
    subscription = [*member.topics, *([f"/{member.regex}/"] if member.regex is not None else ())]
    return member.epoch, target or "-", ",".join(subscription) or "-"


def _upgraded(member: ConsumerGroupMember | None) -> str:
    return "-" if member is None or member.is_upgraded is None else str(member.is_upgraded).lower()


def _print_state(out: Out, group: Any, epochs: ConsumerGroup | None, *, json: bool) -> None:
    at = group.coordinator
    coordinator = f"{at.host}:{at.port} ({at.id})" if at is not None else "-"
    if json:
        document = {"group": group.group_id, "state": _state(group, epochs), "assignor": group.partition_assignor}
        document |= _epochs_json(epochs)
        out.json({**document, "coordinator": at and at.id, "members": len(group.members)})
        return
    columns = ("group", "state", "assignor", "coordinator", "members")
    row = (group.group_id, _state(group, epochs), group.partition_assignor or "-", coordinator, len(group.members))
    if epochs is None:
        show_table(out, columns, [row], right=("members",))
        return
    known = ("group epoch", "target epoch")
    cells = (*row[:4], epochs.epoch, epochs.target_epoch, row[4])
    show_table(out, (*columns[:4], *known, columns[4]), [cells], right=(*known, "members"))


def _state(group: Any, epochs: ConsumerGroup | None) -> str:
    """The library does not know the states Assigning and Reconciling."""
    return state_of(group) if epochs is None else epochs.state


def _epochs_json(epochs: ConsumerGroup | None) -> dict[str, int]:
    return {} if epochs is None else {"groupEpoch": epochs.epoch, "targetEpoch": epochs.target_epoch}


def _epochs_text(epochs: ConsumerGroup | None) -> str:
    return "" if epochs is None else f", group epoch {epochs.epoch}, target epoch {epochs.target_epoch}"
