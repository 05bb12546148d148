"""`seglog spark fsck`: `seglog fsck` over directories that executors see, also each on a host of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from seglog.cli.offline.fsck import DryRun, Repair, SinceManifest, Yes, parse_place, run_fsck
from seglog.cli.spark.session import Conf, Json, Master, session


def fsck(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="[HOST:]DIR...",
            help="Log directories or partitions: of the host that is named, or mounted on every executor.",
            show_default=False,
        ),
    ],
    repair: Repair = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    since_manifest: SinceManifest = False,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Threads for each directory.")] = 1,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Verify the replicas of a cluster and compare them below the high watermark. Brokers may be running.

    Each directory is read by an executor on its host. With --repair, damaged batches come back from a replica that has
    them: stop the brokers of the damaged directories first. The exit code is 1 if there is damage, or if replicas
    differ.
    """
    places = [parse_place(path) for path in paths]
    with session("fsck", master, conf) as spark:
        from seglog.spark.jobs.fsck import HostRunner

        return run_fsck(
            places, HostRunner(spark), repair=repair, yes=yes, dry_run=dry_run, since_manifest=since_manifest,
            workers=workers, json=json,
        )  # fmt: skip
