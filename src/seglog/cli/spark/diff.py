"""`seglog spark diff`: compare two replicas, or a source and its copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from seglog.cli.options import check_choice
from seglog.cli.output import DAMAGE, FINE, Out, count, show_table
from seglog.cli.spark.session import Conf, Json, Master, Topics, check_paths, session
from seglog.core.progress import progress
from seglog.storage.offline.compare import COPY, REPLICAS, Comparison, RangeKind

if TYPE_CHECKING:
    from seglog.storage.offline.compare_directories import PairComparison, Until

_ENDS: Final = ("highWatermark", "logEnd")


def diff(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A log directory or a partition's.", show_default=False)],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Another one.", show_default=False)],
    topic: Topics = None,
    until: Annotated[
        str,
        typer.Option(metavar="|".join(_ENDS), help="highWatermark: records committed in both; logEnd: all records."),
    ] = "highWatermark",
    copy: Annotated[
        bool,
        typer.Option("--copy", help="RIGHT is a copy: ignore batch limits, leader epochs, producers and topic ids."),
    ] = False,
    ignore_epochs: Annotated[bool, typer.Option("--ignore-epochs", help="Ignore leader epochs.")] = False,
    compacted: Annotated[
        bool, typer.Option("--compacted", help="Ignore missing records that have a key, as after compaction.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Print at most N differences per partition.")] = 5,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write all differences as Parquet to a new directory.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Show where two logs differ. Exit code 0: they are equal, 1: they differ, 2: they cannot be compared."""
    check_choice("--until", until, _ENDS)
    check_paths((left, right))
    rules = COPY if copy else REPLICAS._replace(epochs=not ignore_epochs)
    rules = rules._replace(compaction=not compacted)
    from seglog.spark.jobs import diff as job

    planned, size = job.plan(left, right, topics=topic or (), until=cast("Until", until))
    with session("diff", master, conf) as spark:
        with progress("comparing", size) as advance:
            compared = job.diff(spark, planned, rules=rules, progress=advance)
        if output is not None:
            job.differences_frame(spark, compared).coalesce(1).write.parquet(output)
    out = Out()
    is_fine = all(one.is_fine for one in compared)
    try:
        if json:
            partitions = [as_document(one) for one in compared]
            paths = {"left": os.path.abspath(left), "right": os.path.abspath(right)}
            out.json({**paths, "same": is_fine, "partitions": partitions})
        else:
            _show(out, compared, limit)
    finally:
        out.flush()
    return FINE if is_fine else DAMAGE


def as_document(compared: PairComparison) -> dict[str, Any]:
    """``end`` of a range is exclusive. ``records`` counts all records compared, equal or not."""
    pair = compared.pair
    return {
        "topic": pair.partition.topic,
        "partition": pair.partition.partition,
        "left": pair.left.path if pair.left else None,
        "right": pair.right.path if pair.right else None,
        "from": pair.first,
        "to": pair.end,
        "same": compared.is_fine,
        "verdict": compared.verdict.value,
        "firstDifference": compared.first_difference,
        "records": sum(one.records for one in compared.findings),
        "differences": [
            {
                "kind": one.kind.value,
                "first": one.first,
                "end": one.end,
                "records": one.records,
                **({"missingIn": one.side, "place": one.place} if one.kind is RangeKind.MISSING else {}),
                **({"damagedIn": one.side, "reason": one.reason} if one.kind is RangeKind.DAMAGED else {}),
                **({"fields": list(one.fields)} if one.fields else {}),
            }
            for one in compared.differences
        ],
    }


def _show(out: Out, compared: list[PairComparison], limit: int) -> None:
    rows = [
        (
            one.pair.partition,
            one.pair.first,
            one.pair.end,
            sum(finding.records for finding in one.findings),
            one.first_difference,
            "two topics of one name" if one.is_other_topic else one.verdict,
        )
        for one in compared
    ]
    if rows:
        show_table(
            out, ("partition", "from", "to", "records", "first", ""), rows, right=("from", "to", "records", "first")
        )
    for one in compared if limit else ():
        if one.is_other_topic:
            out.line(str(one))
        differences = [] if one.is_fine else one.differences
        for finding in differences[:limit]:
            out.line(f"{one.pair.partition}: {sentence(finding)}")
        if len(differences) > limit:
            out.line(f"{one.pair.partition}: … and {len(differences) - limit} more: --limit N, --json or --output DIR")
    different = sum(not one.is_fine for one in compared)
    out.line(f"{count(len(compared), 'partition')}: {different or 'none'} different")


def sentence(finding: Comparison) -> str:
    """
    >>> sentence(Comparison(RangeKind.DIFFERS, 5, 7, 2, ("value", "epoch")))
    'offsets 5 to 6: 2 records with another value, epoch'
    >>> sentence(Comparison(RangeKind.MISSING, 9, 10, 1, side="left", place="end"))
    'offset 9: 1 record missing in the left log, which ends earlier'
    >>> sentence(Comparison(RangeKind.DAMAGED, 9, 12, 3, side="right", reason="b/t-0/0.log: damage"))
    'offsets 9 to 11: damaged in the right log: b/t-0/0.log: damage'
    """
    where = f"offset {finding.first}" if finding.end - finding.first == 1 else (
        f"offsets {finding.first} to {finding.end - 1}"
    )  # fmt: skip
    records = count(finding.records, "record")
    if finding.fields:
        return f"{where}: {records} with another {', '.join(finding.fields)}"
    if finding.kind is RangeKind.DAMAGED:
        return f"{where}: damaged in the {finding.side} log: {finding.reason}"
    if not finding.side:
        return f"{where}: {records} the same, in other batches"
    why = {"start": ", which begins later", "end": ", which ends earlier", "inside": ""}[finding.place]
    return f"{where}: {records} missing in the {finding.side} log{why}"
