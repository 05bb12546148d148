"""`seglog spark verify`: the checks of `seglog verify`, on all cores of Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from seglog.cli.offline.verify import Paths, Strict, report
from seglog.cli.spark.session import Conf, Json, Master, check_paths, session
from seglog.core.progress import progress


def verify(
    paths: Paths,
    strict: Strict = False,
    output: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Also write the findings as Parquet to a new directory."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Check every byte and change nothing. The exit code is 1 if there is damage. A note is unusual, but not damage."""
    check_paths(paths)
    with session("verify", master, conf) as spark:
        from seglog.spark.jobs import verify as job

        with progress("checking", job.measure(paths)) as advance:
            verified = job.verify(spark, paths, strict=strict, progress=advance)
        if output is not None:
            job.findings_frame(spark, verified).coalesce(1).write.parquet(output)
    return report(verified, json=json)
