"""`seglog fsck`: verify the replicas of a cluster, compare them, and restore damaged batches from each other."""

from __future__ import annotations

import os.path
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from seglog.cli.offline.repair import plan_document, show_plan
from seglog.cli.offline.verify import finding_document, totals
from seglog.cli.options import JsonDocument, OptionError
from seglog.cli.output import DAMAGE, FINE, Out, count, fail
from seglog.core.progress import progress
from seglog.storage.offline.findings import Severity
from seglog.storage.offline.fsck.check import (
    Difference,
    FsckReport,
    PartitionCheck,
    Place,
    PlaceCall,
    PlaceRunner,
    PlannedRepair,
    carry_out_repairs,
    check,
    plan_repairs,
    run_here,
    total,
)
from seglog.storage.offline.fsck.replica_reads import inspect
from seglog.storage.offline.repair.partition_repair import RepairedPartition
from seglog.storage.offline.verify import measure

_HOST_AND_PATH: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):(/.*)")

Repair = Annotated[bool, typer.Option("--repair", help="Also repair what is damaged.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a repair.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --repair: show the plan and change nothing.")]
SinceManifest = Annotated[
    bool,
    typer.Option(
        "--since-manifest",
        help="Trust segments in a seglog.manifest by presence, size and end, and compare them by it; read the rest.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Threads or processes for each directory.", show_default="one per CPU"),
]


def fsck(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="DIR...", help="Log directories or partitions, mounted or copied.", show_default=False),
    ],
    repair: Repair = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    since_manifest: SinceManifest = False,
    workers: Workers = None,
    json: JsonDocument = False,
) -> int:
    """Verify the replicas of a cluster and compare them below the high watermark. Brokers may be running.

    With --repair, damaged batches come back from a replica that has them, byte for byte: stop the brokers of the
    damaged directories first. The exit code is 1 if there is damage, or if replicas differ.
    """
    for path in paths:
        if _HOST_AND_PATH.fullmatch(path) and not os.path.exists(path):
            return fail(f"{path}: a directory of another host is read by seglog spark fsck, or mount it here")
    places = [Place(os.path.realpath(path) if path else "") for path in paths]
    return run_fsck(
        places, _run_with_bar, repair=repair, yes=yes, dry_run=dry_run, since_manifest=since_manifest, workers=workers,
        json=json,
    )  # fmt: skip


def _run_with_bar(calls: Sequence[PlaceCall]) -> Sequence[Any]:
    with progress("checking", measure([call.place.path for call in calls if call.function is inspect])) as advance:
        return run_here(calls, advance)


def parse_place(text: str) -> Place:
    """
    >>> parse_place("broker1:/var/kafka"), parse_place("/mnt/broker1")
    (Place(path='/var/kafka', host='broker1'), Place(path='/mnt/broker1', host=''))
    """
    match = _HOST_AND_PATH.fullmatch(text)
    if match is not None and not os.path.exists(text):
        return Place(match[2], match[1].strip("[]"))
    if text.startswith("/"):
        return Place(text)
    raise OptionError(f"{text or 'an empty path'}: name a directory as /path, or as host:/path")


def run_fsck(
    places: Sequence[Place],
    run: PlaceRunner,
    *,
    repair: bool,
    yes: bool,
    dry_run: bool,
    since_manifest: bool,
    workers: int | None,
    json: bool,
) -> int:
    """Check, report, and repair if the caller wants it; return the exit code."""
    if any(not place.path for place in places):  # from an unset variable, say: it would mean the working directory
        return fail("a path is empty: name a log directory or a partition")
    if len(set(places)) < len(places):
        return fail(f"a directory is named twice: {', '.join(map(str, places))}")
    if json and repair and not yes and not dry_run:
        return fail("--json cannot ask for confirmation: add --yes or --dry-run")
    if (yes or dry_run) and not repair:
        return fail("--yes and --dry-run need --repair")
    report = check(places, run, since_manifest=since_manifest, workers=workers)
    planned = plan_repairs(report, run) if repair else []
    done: list[RepairedPartition] = []
    after: FsckReport | None = None
    with Out() as out:
        if not json:
            _show(out, report)
            for one in planned:
                out.line(f"{one.place}:")
                show_plan(out, one.plan)
            out.flush()
        if not dry_run and any(one.plan.all_steps for one in planned):
            if not yes and not (sys.stdin is not None and sys.stdin.isatty()):
                return fail("nothing was changed: stdin is not a terminal; --yes repairs without asking")
            if not yes and not typer.confirm("Do this?", default=False):
                return fail("nothing was changed")
            done = carry_out_repairs(planned, run)
            after = check(places, run, workers=workers)
        if json:
            out.json(_document(report, planned, done, after))
        elif after is not None:
            for each in done:
                if each.backup is not None:
                    out.line(f"the originals are in {each.backup}")
            _show(out, after)
    return DAMAGE if (after or report).is_damaged else FINE


def _show(out: Out, report: FsckReport) -> None:
    verified = total(report)
    for finding in verified.findings:
        out.line(f"{finding.severity.value}: {finding}")
    for place, directory in report.places:
        for path in directory.unsettled:
            out.line(f"note: {place._replace(path=path)}: not compared: its files kept changing")
    for one in report.partitions:
        for difference in one.differences:
            out.line(f"{_kind(difference)}: {one.partition}, {difference}")
    out.line(totals(verified))
    compared = [one for one in report.partitions if one.compared is not None]
    different = sum(one.is_damaged for one in report.partitions)
    alone = len(report.partitions) - len(compared)
    said = f"{count(len(compared), 'partition')} compared: {different or 'none'} different"
    out.line(f"{said}; {alone} in one directory only" if alone else said)


def _kind(difference: Difference) -> str:
    return "differ" if difference.severity is Severity.DAMAGE else "note"


def _document(
    report: FsckReport, planned: Sequence[PlannedRepair], done: Sequence[RepairedPartition], after: FsckReport | None
) -> dict[str, object]:
    document = _report_document(report)
    document["repairs"] = [{"place": str(one.place), **plan_document(one.plan)} for one in planned]
    document["backups"] = [one.backup for one in done if one.backup is not None]
    document["afterRepair"] = _report_document(after) if after is not None else None
    return document


def _report_document(report: FsckReport) -> dict[str, object]:
    verified = total(report)
    counts = verified._asdict()
    counts["findings"] = [finding_document(finding) for finding in verified.findings]
    return {
        "damaged": report.is_damaged,
        "verified": counts,
        "partitions": [_partition_document(one) for one in report.partitions],
        "notCompared": [
            str(place._replace(path=path)) for place, directory in report.places for path in directory.unsettled
        ],
    }


def _partition_document(checked: PartitionCheck) -> dict[str, object]:
    """``end`` and ``to`` are exclusive."""
    compared = checked.compared
    return {
        "topic": checked.partition.topic,
        "partition": checked.partition.partition,
        "replicas": [
            {
                "path": one.name,
                "node": one.state.node,
                "logStartOffset": one.state.log_start,
                "logEndOffset": one.state.log_end,
                "highWatermark": one.state.committed if one.state.has_high_watermark else None,
            }
            for one in checked.replicas
        ],
        "from": compared.first if compared is not None else None,
        "to": compared.end if compared is not None else None,
        "differences": [
            {
                "severity": one.severity.value,
                "first": one.first,
                "end": one.end,
                "what": one.what,
                "replicas": list(one.replicas),
                "right": list(one.right),
                "why": one.why,
            }
            for one in checked.differences
        ],
    }
