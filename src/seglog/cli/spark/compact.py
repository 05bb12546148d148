"""`seglog spark compact`: keep the last record of each key, on all cores of Spark."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seglog.cli.output import DAMAGE, FINE, Out, format_size, show_table
from seglog.cli.spark.session import Conf, DryRun, Json, Master, check_paths, session
from seglog.core.fs import OsFs
from seglog.core.progress import progress
from seglog.storage.offline.verify import measure

if TYPE_CHECKING:
    from seglog.spark.jobs.compact import CompactionResult


def compact(
    path: Annotated[str, typer.Argument(metavar="DIR", help="A log directory that no broker has open.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this topic; repeat the option for more.", show_default="all compacted ones"
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Compact the named topics even if DIR does not configure compaction for them."),
    ] = False,
    min_dirty_ratio: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Skip partitions with a smaller dirty share.")
    ] = 0.0,
    roll: Annotated[
        bool, typer.Option("--roll", help="Roll the active segment first, so that it is cleaned too.")
    ] = False,
    dry_run: DryRun = False,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Compact topics as Kafka's cleaner does. A damaged partition is not changed; the exit code is then 1."""
    check_paths([path])
    with session("compact", master, conf) as spark:
        from seglog.spark.jobs import compact as job

        with progress("compacting", measure([path], fs=OsFs())) as advance:
            done = job.compact(
                spark,
                path,
                topics=topic,
                force=force,
                min_dirty_ratio=min_dirty_ratio,
                roll=roll,
                dry_run=dry_run,
                progress=advance,
            )
    with Out() as out:
        _show(out, done, as_json=json)
    return DAMAGE if done.failed else FINE


def _show(out: Out, done: CompactionResult, *, as_json: bool) -> None:
    if as_json:
        document = asdict(done)
        document["failed"] = {str(name): reason for name, reason in done.failed.items()}
        out.json(document)
        return
    if done.partitions:
        _show_partitions(out, done)
    for name, reason in done.failed.items():
        out.line(f"failed: {name}: {reason}")
    out.line(summary(done))


def _show_partitions(out: Out, done: CompactionResult) -> None:
    columns = ["partition", "by", "from", "to", "segments", "size", "dirty"]
    rows: list[list[object]] = [
        [
            f"{one.topic}-{one.partition}",
            one.by,
            one.first_dirty,
            one.end_offset,
            one.segments_before,
            format_size(one.total_bytes),
            format_size(one.dirty_bytes),
        ]
        for one in done.partitions
    ]
    if not done.dry_run:
        columns += ["records", "left", "size left", "seconds"]
        for row, one in zip(rows, done.partitions, strict=True):
            row[4] = f"{one.segments_before} -> {one.segments_after}"
            row += [one.records_read, one.records_written, format_size(one.bytes_written), f"{one.seconds:.1f}"]
    show_table(out, columns, rows, right=columns[2:])


def summary(done: CompactionResult) -> str:
    """The result in one line."""
    count = len(done.partitions)
    rest = f", {done.clean} had nothing to clean" if done.clean else ""
    rest += f", {len(done.failed)} failed" if done.failed else ""
    if done.dry_run:
        dirty = sum(one.dirty_bytes for one in done.partitions)
        return f"{count} to compact with {format_size(dirty)} of dirty segments{rest}; nothing was changed"
    before = sum(one.total_bytes for one in done.partitions)
    return f"{count} compacted, {format_size(before)} -> {format_size(before - done.bytes_saved)}{rest}"
