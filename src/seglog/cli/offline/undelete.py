"""`seglog undelete`: bring deleted topics and strays back before they are gone."""

from __future__ import annotations

import os.path
import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from seglog.cli.output import DAMAGE, FINE, Out, count, fail, format_size
from seglog.core.clock import SystemClock
from seglog.core.fs import OsFs
from seglog.storage.formats.checkpoints import encode_id
from seglog.storage.offline.repair import RepairPlan, lock_directory
from seglog.storage.offline.undelete import UndeletePlan, carry_out_undelete, plan_undelete


def undelete(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A log directory.", show_default=False)],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only these.", show_default="all")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document; needs --yes or --dry-run.")] = False,
) -> int:
    """Bring deleted topics and strays back: their directories, topic ids, configuration and metadata.

    Kafka unlinks a deleted topic after file.delete.delay.ms, a minute by default: stop the broker first, at once and
    with kill -9. It is for a broker that is the only controller and has all replicas, and for seglog's own directories.
    The exit code is 1 if a directory cannot come back.
    """
    if json and not yes and not dry_run:
        return fail("--json cannot ask for confirmation: add --yes or --dry-run")
    if not directory or not os.path.isdir(directory):
        return fail(f"{directory or 'the path'} is not a directory")
    path = os.path.realpath(directory)
    fs = OsFs()
    out = Out()
    repairs: list[RepairPlan] = []
    with nullcontext() if dry_run else lock_directory(path, fs=fs):
        plan = plan_undelete(fs, path, topics)
        if not json:
            _show(out, plan)
        if plan.topics and not dry_run:
            if not yes and not (sys.stdin is not None and sys.stdin.isatty()):
                return fail("nothing was changed: stdin is not a terminal; --yes does it without asking")
            if not yes and not typer.confirm("Do this?", default=False):
                return fail("nothing was changed")
            repairs = carry_out_undelete(fs, SystemClock(), plan)
            if not json:
                out.line(f"{count(len(plan.topics), 'topic')} came back; start the broker")
    if json:
        out.json(_document(plan, repairs, is_done=not dry_run))
    out.flush()
    return DAMAGE if plan.refusals else FINE


def _show(out: Out, plan: UndeletePlan) -> None:
    for topic in plan.topics:
        size = sum(one.size for one in topic.partitions)
        parts = count(len(topic.partitions), "partition")
        out.line(f"topic {topic.name} with id {encode_id(topic.topic_id)}: {parts}, {format_size(size)}")
        for one in topic.partitions:
            target = os.path.join(plan.path, str(one.partition))
            out.line(f"  {one.path} becomes {target}" if one.is_aside else f"  {one.path} stays")
        for key, value in sorted(topic.config.items()):
            out.line(f"  {key}={value}")
        for loss in topic.loses:
            out.line(f"  {loss}")
    for reason in plan.refusals:
        out.line(f"refused: {reason}")
    if not plan.topics:
        out.line("nothing can come back" if plan.refusals else "no directory is deleted or stray")
    out.flush()


def _document(plan: UndeletePlan, repairs: list[RepairPlan], *, is_done: bool) -> dict[str, object]:
    return {
        "topics": [
            {
                "topic": topic.name,
                "topicId": encode_id(topic.topic_id),
                "config": dict(topic.config),
                "loses": list(topic.loses),
                "partitions": [
                    {
                        "partition": one.partition.partition,
                        "from": one.path,
                        "path": os.path.join(plan.path, str(one.partition)),
                        "bytes": one.size,
                    }
                    for one in topic.partitions
                ],
            }
            for topic in plan.topics
        ],
        "refused": list(plan.refusals),
        "repaired": [{"file": step.file, "what": step.what} for repair in repairs for step in repair.all_steps],
        "done": is_done and bool(plan.topics),
    }
