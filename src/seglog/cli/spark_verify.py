"""`seglog spark verify`: what `seglog verify` looks at and finds, on all cores that Spark has."""

from __future__ import annotations

from typing import Annotated

import typer

from seglog.cli.output import DAMAGE, FINE, Out, progress
from seglog.cli.spark import Conf, Json, Master, check_paths, session
from seglog.cli.verify import as_document, totals


def verify(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Log directories, partitions, or single files.", show_default=False),
    ],
    strict: Annotated[
        bool, typer.Option("--strict", help="Count as damage what only Kafka up to 3.9 writes into indexes.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write the findings as Parquet too, into a new directory."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Check every byte and change nothing. Exit code 1 if there is damage; what is only unusual is a note."""
    check_paths(paths)
    with session("verify", master, conf) as spark:
        from seglog.spark.jobs import verify as job

        with progress("checking", job.measure(paths)) as advance:
            verified = job.verify(spark, paths, strict=strict, progress=advance)
        if output is not None:
            job.findings_frame(spark, verified).coalesce(1).write.parquet(output)
    out = Out()
    try:
        if json:
            out.json(as_document(verified))
        else:
            for finding in verified.findings:
                out.line(f"{finding.severity.value}: {finding}")
            out.line(totals(verified))
    finally:
        out.flush()
    return DAMAGE if verified.is_damaged else FINE
