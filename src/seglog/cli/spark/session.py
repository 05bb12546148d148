"""Options and the Spark session that the commands of `seglog spark` share.

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

from seglog.cli.options import OptionError, key_values
from seglog.cli.output import warn
from seglog.core.errors import SeglogError
from seglog.core.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077 … Under spark-submit, its own master.",
        show_default="local[*]",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="KEY=VALUE", help="A setting of Spark; repeat the option for more.", show_default=False
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="NAME", help="Only this topic; repeat the option for more.", show_default="all"),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the data source; repeat the option for more."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has already started the JVM."""


@contextmanager
def session(job: str, master: str | None = None, conf: Sequence[str] | None = None) -> Iterator[SparkSession]:
    """A session for one job: the active one, or a new one, which is stopped at the end.

    Errors of Spark raised inside become errors of seglog, in one line. If the reason may be in the output of the JVM
    and the workers, that output is kept in a file, which is named on stderr.
    """
    sql = require("pyspark.sql", "spark", purpose="a job on Spark")
    from seglog.spark.jobs.driver import JobFailedError, plain_errors
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
        warn(f"seglog: the output of Spark is in {log}")
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
    settings = key_values("--conf", conf, shape="KEY=VALUE, as in spark.driver.memory=4g")
    for key in settings:
        if not key.startswith("spark."):
            raise OptionError(f"--conf {key}: settings of Spark start with spark., as in spark.driver.memory=4g")
    return settings


def check_paths(paths: Sequence[str]) -> None:
    """Raise `SeglogError` for a path that does not exist, before Spark takes seconds to start."""
    for path in paths:
        if not os.path.exists(path):
            raise SeglogError(f"{path}: No such file or directory")
