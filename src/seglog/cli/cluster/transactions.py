"""`seglog transactions`: list, describe and end transactions, as kafka-transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from seglog.cli.cluster.requests import DEFAULT_CLUSTER, ClusterOptions
from seglog.cli.options import JsonLines, ShowOnly, Yes, confirm, with_options
from seglog.cli.output import FINE, Out, fail, format_time, show_table
from seglog.core.clock import SystemClock

if TYPE_CHECKING:
    from seglog.client.transactions import ActiveProducer, TransactionAdmin, TransactionDescription

T = TypeVar("T")
_MINUTE_MS: Final = 60_000
Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic.", show_default=False)]
Partition = Annotated[int, typer.Option("--partition", metavar="N", help="The partition.", show_default=False)]


def _ask(where: ClusterOptions, ask: Callable[[TransactionAdmin], T]) -> T:
    from seglog.client.transactions import TransactionAdmin  # slow to import: it loads the protocol's schema

    with TransactionAdmin(where.addresses, where.timeout, where.security) as admin:
        return ask(admin)


@with_options
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only in this state, such as Ongoing.", show_default=False),
    ] = None,
    longer_than: Annotated[
        int,
        typer.Option("--duration-filter", metavar="MS", help="Only transactions that have run longer than this."),
    ] = -1,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--transactional-id-pattern", metavar="REGEX", help="Only ids that match as a whole.", show_default=False
        ),
    ] = None,
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """List the transactional ids of all coordinators."""
    found = _ask(
        where,
        lambda admin: admin.list_transactions(states=state or (), longer_than_ms=longer_than, pattern=pattern),
    )
    with Out() as out:
        for one in sorted(found) if json else ():
            out.json(
                {
                    "transactionalId": one.transactional_id,
                    "coordinator": one.coordinator,
                    "producerId": one.producer_id,
                    "state": one.state,
                }
            )
        if found and not json:
            columns = ("transactional id", "coordinator", "producer id", "state")
            show_table(out, columns, sorted(found), right=columns[1:3])
    return FINE


@with_options
def describe_transaction(
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL-ID", show_default=False)],
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """Show the state, the age and the partitions of a transaction."""
    found = _ask(where, lambda admin: admin.describe_transaction(transactional_id))
    is_open = found.start_ms >= 0 and not found.state.startswith("Complete")
    age_ms = SystemClock().now_ms() - found.start_ms if is_open else None
    with Out() as out:
        if json:
            out.json(
                {
                    "transactionalId": found.transactional_id,
                    "coordinator": found.coordinator,
                    "producerId": found.producer_id,
                    "producerEpoch": found.producer_epoch,
                    "state": found.state,
                    "timeoutMs": found.timeout_ms,
                    "startMs": found.start_ms if is_open else None,
                    "durationMs": age_ms,
                    "partitions": [{"topic": topic, "partition": number} for topic, number in found.partitions],
                }
            )
            return FINE
        out.line(f"transactional id  {found.transactional_id}")
        out.line(f"coordinator       {found.coordinator}")
        out.line(f"producer          {found.producer_id}, epoch {found.producer_epoch}")
        out.line(f"state             {found.state}")
        out.line(f"timeout           {found.timeout_ms} ms")
        if age_ms is not None:
            out.line(f"began             {format_time(found.start_ms)}, {age_ms} ms ago")
        if found.partitions:
            names = ", ".join(f"{topic}-{number}" for topic, number in found.partitions)
            out.line(f"partitions        {names}")
    return FINE


@with_options
def describe_producers(
    topic: Topic,
    partition: Partition,
    broker: Annotated[
        int | None, typer.Option("--broker-id", metavar="N", help="Ask this replica, not the leader.")
    ] = None,
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """Show the producers that a partition knows, and their open transactions."""
    return _show(_ask(where, lambda admin: admin.producers([(topic, partition)], broker)), json=json)


@with_options
def find_hanging(
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.", show_default=False)
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", help="Only this partition.", show_default=False)
    ] = None,
    broker: Annotated[
        int | None,
        typer.Option("--broker-id", metavar="N", help="Only partitions that this broker leads.", show_default=False),
    ] = None,
    minutes: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            metavar="MINUTES",
            min=0,
            help="The brokers' transaction.max.timeout.ms in minutes: a younger transaction may still be ended.",
        ),
    ] = 15,
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """Find open transactions that no coordinator will end. They keep consumers with read_committed waiting."""
    if partition is not None and topic is None:
        return fail("--partition needs --topic")

    def ask(admin: TransactionAdmin) -> list[ActiveProducer]:
        places = admin.all_places(None if topic is None else [topic], broker)
        wanted = [one for one in places if partition is None or one[1] == partition]
        return admin.hanging(wanted, older_than_ms=minutes * _MINUTE_MS, now_ms=SystemClock().now_ms())

    return _show(_ask(where, ask), json=json)


@with_options
def abort_transaction(
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[
        int,
        typer.Option(
            "--start-offset",
            metavar="OFFSET",
            help="The first offset of the transaction, as find-hanging shows it.",
            show_default=False,
        ),
    ],
    yes: Yes = False,
    dry_run: ShowOnly = False,
    where: ClusterOptions = DEFAULT_CLUSTER,
) -> int:
    """End a hanging transaction in one partition with an abort marker.

    A transaction that a coordinator still has is not ended: see force-terminate.
    """

    def ask(admin: TransactionAdmin) -> ActiveProducer | None:
        for one in admin.producers([(topic, partition)]):
            if one.transaction_start == start_offset:
                if not dry_run:
                    confirm(f"Abort the records of producer {one.producer_id} in {topic}-{partition}?", yes=yes)
                    admin.abort(one)
                return one
        return None

    aborted = _ask(where, ask)
    if aborted is None:
        return fail(f"topic {topic}, partition {partition}: no open transaction begins at offset {start_offset}")
    verb = "would be" if dry_run else "are"
    with Out() as out:
        out.line(
            f"topic {topic}, partition {partition}: the records of producer {aborted.producer_id} from offset "
            f"{start_offset} on {verb} aborted. Other partitions are not changed, and the producer is not fenced."
        )
    return FINE


@with_options
def force_terminate(
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL-ID", show_default=False)],
    yes: Yes = False,
    dry_run: ShowOnly = False,
    where: ClusterOptions = DEFAULT_CLUSTER,
) -> int:
    """Abort the open transaction of an id in all of its partitions, and fence its producer."""
    if not dry_run:
        confirm(f"Abort the open transaction of {transactional_id} and fence its producer?", yes=yes)

    def ask(admin: TransactionAdmin) -> TransactionDescription:
        return (admin.describe_transaction if dry_run else admin.force_terminate)(transactional_id)

    found = _ask(where, ask)
    names = ", ".join(f"{topic}-{number}" for topic, number in found.partitions)
    with Out() as out:
        if dry_run:
            ended = (
                f"the transaction of {transactional_id} would be ended in {names}"
                if names
                else f"{transactional_id} has no open transaction"
            )
            out.line(f"{ended}; its producer would be fenced")
        elif names:
            out.line(f"the transaction of {transactional_id} is ended in {names}, and its producer is fenced")
        else:
            out.line(f"{transactional_id} had no open transaction; its producer is fenced")
    return FINE


def _show(producers: list[ActiveProducer], *, json: bool) -> int:
    with Out() as out:
        for one in producers if json else ():
            out.json(
                {
                    "topic": one.place[0],
                    "partition": one.place[1],
                    "producerId": one.producer_id,
                    "producerEpoch": one.producer_epoch,
                    "coordinatorEpoch": one.coordinator_epoch,
                    "lastSequence": one.last_sequence,
                    "lastTimestamp": one.last_timestamp,
                    "transactionStartOffset": one.transaction_start,
                }
            )
        if producers and not json:
            columns = (
                "topic",
                "partition",
                "producer id",
                "epoch",
                "coordinator epoch",
                "last write",
                "open since offset",
            )
            rows = [
                (
                    *one.place,
                    one.producer_id,
                    one.producer_epoch,
                    one.coordinator_epoch,
                    format_time(one.last_timestamp),
                    "none" if one.transaction_start is None else one.transaction_start,
                )
                for one in producers
            ]
            show_table(out, columns, rows, right=columns[1:5])
    return FINE
