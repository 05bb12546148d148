"""`seglog spark diff`: two replicas, or a source and its copy, beside each other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from seglog.cli.output import DAMAGE, FINE, Out, fail, progress, show_table
from seglog.cli.spark.session import Conf, Json, Master, check_paths, session
from seglog.storage.offline.compare import COPY, REPLICAS, Finding, Kind

if TYPE_CHECKING:
    from seglog.storage.offline.compare_directories import Compared, Until


def diff(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A log directory or a partition's.", show_default=False)],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Another one.", show_default=False)],
    topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this topic; may be given again.", show_default="all")
    ] = None,
    until: Annotated[
        str, typer.Option(metavar="WHERE", help="highWatermark: what both say is committed; logEnd: everything.")
    ] = "highWatermark",
    copy: Annotated[
        bool,
        typer.Option(
            "--copy", help="RIGHT is a copy: other batches, leader epochs, producers, topic ids are no difference."
        ),
    ] = False,
    ignore_epochs: Annotated[
        bool, typer.Option("--ignore-epochs", help="Other leader epochs are no difference.")
    ] = False,
    compacted: Annotated[
        bool, typer.Option("--compacted", help="What compaction does is no difference: records with keys may be gone.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Tell N differences of a partition.")] = 5,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write all differences as Parquet, into a new directory.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Tell where two logs differ. Exit code 0 if they do not, 1 if they do, 2 if they cannot be compared."""
    if until not in ("highWatermark", "logEnd"):
        return fail(f"--until {until}: highWatermark or logEnd")
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


def as_document(compared: Compared) -> dict[str, Any]:
    """``end`` of a range is exclusive. ``records`` are all that were compared, also where they are the same."""
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
                **({"missingIn": one.side, "place": one.place} if one.kind is Kind.MISSING else {}),
                **({"damagedIn": one.side, "reason": one.reason} if one.kind is Kind.DAMAGED else {}),
                **({"fields": list(one.fields)} if one.fields else {}),
            }
            for one in compared.differences
        ],
    }


def _show(out: Out, compared: list[Compared], limit: int) -> None:
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
    out.line(f"{len(compared)} partition{'s' if len(compared) != 1 else ''}: {different or 'none'} different")


def sentence(finding: Finding) -> str:
    """
    >>> sentence(Finding(Kind.DIFFERS, 5, 7, 2, ("value", "epoch")))
    'offsets 5 to 6: 2 records with another value, epoch'
    >>> sentence(Finding(Kind.MISSING, 9, 10, 1, side="left", place="end"))
    'offset 9: 1 record missing in the left log, which has ended before'
    >>> sentence(Finding(Kind.DAMAGED, 9, 12, 3, side="right", reason="b/t-0/0.log, position 7: stored CRC 1 is not 2"))
    'offsets 9 to 11: damaged in the right log: b/t-0/0.log, position 7: stored CRC 1 is not 2'
    """
    where = f"offset {finding.first}" if finding.end - finding.first == 1 else (
        f"offsets {finding.first} to {finding.end - 1}"
    )  # fmt: skip
    count = f"{finding.records} record{'s' if finding.records != 1 else ''}"
    if finding.fields:
        return f"{where}: {count} with another {', '.join(finding.fields)}"
    if finding.kind is Kind.DAMAGED:
        return f"{where}: damaged in the {finding.side} log: {finding.reason}"
    if not finding.side:
        return f"{where}: {count} the same, in other batches"
    why = {"start": ", which begins behind", "end": ", which has ended before", "inside": ""}[finding.place]
    return f"{where}: {count} missing in the {finding.side} log{why}"
