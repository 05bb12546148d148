"""`seglog repair`: show a plan, ask, repair, and verify the result."""

from __future__ import annotations

import os.path
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from enum import StrEnum
from typing import Annotated

import typer

from seglog.cli.offline.verify import as_document, totals
from seglog.cli.output import DAMAGE, FINE, Out, fail
from seglog.core.fs import OsFs
from seglog.storage.offline.repair import RepairPlan, carry_out, lock_directory, plan_repair
from seglog.storage.offline.repair.partition_repair import RepairedPartition
from seglog.storage.offline.verify import VerifyReport
from seglog.storage.offline.verify import verify as verify_paths


class LogStart(StrEnum):
    """Where a log starts after repair if it ends below its checkpointed start."""

    SEGMENT = "segment"
    CHECKPOINT = "checkpoint"


def repair(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A log directory or a partition.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Drop batches that cannot be read and keep those around them.")
    ] = False,
    replica: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Restore damaged batches from this replica: its log directory or partition.",
            show_default=False,
        ),
    ] = None,
    log_start: Annotated[
        LogStart,
        typer.Option(
            "--log-start",
            metavar="|".join(LogStart),
            help="Start of a log that ends below its checkpointed start: its first segment, or the checkpoint, its "
            "records moved to .seglog.",
        ),
    ] = LogStart.SEGMENT,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document; needs --yes or --dry-run.")] = False,
) -> int:
    """Rebuild indexes, snapshots and checkpoints and truncate a torn tail. The originals stay in a backup.

    The exit code is 1 if damage is left, or with --dry-run if there is damage.
    """
    if json and not yes and not dry_run:
        return fail("--json cannot ask for confirmation: add --yes or --dry-run")
    if not path:  # from an unset variable, say: it would mean the working directory
        return fail("the path is empty: name a log directory or a partition")
    if replica is not None and not os.path.isdir(replica):
        return fail(f"--from {replica or 'is empty'}: not a directory")
    path = os.path.realpath(path)
    fs = OsFs()
    out = Out()
    with nullcontext() if dry_run else lock_directory(path, fs=fs):
        plan = plan_repair(
            path, fs=fs, salvage=salvage, keep_log_start=log_start is LogStart.CHECKPOINT, replica=replica
        )
        done: list[RepairedPartition] = []
        verified: VerifyReport | None = None
        if not json:
            show_plan(out, plan)
        if plan.all_steps and not dry_run:
            if not yes and not _can_ask():
                return fail("nothing was changed: stdin is not a terminal; --yes repairs without asking")
            if not yes and not typer.confirm("Do this?", default=False):
                return fail("nothing was changed")
            done = carry_out(plan, fs=fs)
            verified = verify_paths([path], fs=fs)
    if json:
        out.json(_document(plan, done, verified))
    elif verified is not None:
        _show_result(out, done, verified)
    out.flush()
    is_damaged = verified.is_damaged if verified is not None else bool(plan.all_steps or plan.all_refusals)
    return DAMAGE if is_damaged else FINE


def show_plan(out: Out, plan: RepairPlan) -> None:
    for step in plan.all_steps:
        out.line(str(step))
    for reason in plan.all_refusals:
        out.line(f"refused: {reason}")
    if not plan.all_steps:
        out.line("nothing can be repaired" if plan.all_refusals else "nothing to repair")
    out.flush()


def _can_ask() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _show_result(out: Out, done: Sequence[RepairedPartition], verified: VerifyReport) -> None:
    for one in done:
        if one.backup is not None:
            out.line(f"the originals are in {one.backup}")
        for first_offset, producer_id in one.open_transactions.items():
            out.line(
                f"{one.path}: the transaction of producer {producer_id} is open since offset {first_offset}; if its "
                "end marker was lost, end it with kafka-transactions.sh abort"
            )
    for finding in verified.findings:
        out.line(f"{finding.severity.value}: {finding}")
    out.line(totals(verified))


def _document(plan: RepairPlan, done: Sequence[RepairedPartition], verified: VerifyReport | None) -> dict[str, object]:
    return {
        **plan_document(plan),
        "backups": [one.backup for one in done if one.backup is not None],
        "verified": as_document(verified) if verified is not None else None,
    }


def plan_document(plan: RepairPlan) -> dict[str, object]:
    return {
        "steps": [{"file": step.file, "what": step.what, "loses": step.loses or None} for step in plan.all_steps],
        "refused": plan.all_refusals,
    }
