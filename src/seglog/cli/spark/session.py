"""What the jobs of `seglog spark` share: their options, and a session that is there for one command.

A job is a module ``cli/spark/<job>.py`` with a function of its name; see `seglog.cli.main.SPARK_COMMANDS`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from seglog.cli.output import warn
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077 … Under spark-submit, what that was told.",
        show_default="local[*]",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be given again.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has started the JVM already."""


@contextmanager
def session(job: str, master: str | None = None, conf: Sequence[str] | None = None) -> Iterator[SparkSession]:
    """A session for one job: the one that runs, else a new one, which is stopped at the end.

    Errors of Spark that are raised inside come out as ours, in one line; where the reason may be in what the JVM and
    the workers printed, that is kept in a file which is named on stderr.
    """
    sql = require("pyspark.sql", "spark", purpose="a job on Spark")
    from seglog.spark.jobs.failure import JobFailedError, plain_errors
    from seglog.spark.runtime.session import get_spark

    settings = _settings(conf or ())
    running = sql.SparkSession.getActiveSession()
    if running is not None:
        with plain_errors():
            yield running
        return
    directory = tempfile.mkdtemp(prefix="seglog-spark-")
    log = os.path.join(directory, "spark.log")
    is_wanted = False
    try:
        with plain_errors():
            spark = get_spark(f"seglog {job}", master=_master(master), config=settings, jvm_log=log)
            try:
                yield spark
            finally:
                spark.stop()
    except JobFailedError:
        is_wanted = True
        warn(f"seglog: what Spark said is in {log}")
        raise
    finally:
        if not is_wanted:
            shutil.rmtree(directory, ignore_errors=True)


def _master(master: str | None) -> str:
    if master is not None:
        return master
    if _SUBMITTED in os.environ:
        from pyspark import SparkConf

        return SparkConf().get("spark.master", "local[*]") or "local[*]"
    return "local[*]"


def _settings(conf: Sequence[str]) -> dict[str, str]:
    settings = {}
    for one in conf:
        key, separator, value = one.partition("=")
        if not separator or not key.startswith("spark."):
            raise InvalidConfigError(f"--conf {one}: a setting of Spark's as in spark.driver.memory=4g")
        settings[key] = value
    return settings


def check_paths(paths: Sequence[str]) -> None:
    """Before Spark takes seconds to start: `SeglogError` for a path that is not there."""
    for path in paths:
        if not os.path.exists(path):
            raise SeglogError(f"{path}: No such file or directory")
