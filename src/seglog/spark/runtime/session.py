"""A `SparkSession` that is ready to use: it finds a Java, gives workers the right Python, and logs little."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Final

from seglog.core.errors import SeglogError
from seglog.core.extras import require
from seglog.core.fs import OsFs
from seglog.spark.runtime.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}
"""The defaults of `get_spark`. Record timestamps are UTC, and so are hours and days in queries.

Over TCP the JVM and a Python worker wait some 40 ms for each other at every task (Nagle's algorithm against delayed
acknowledgements): 8 tiny tasks on two cores take 0.35 s, and 0.11 s over sockets of the file system.
"""


def get_spark(
    app_name: str = "seglog",
    *,
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    jvm_log: str | None = None,
) -> SparkSession:
    """The active session, or a new one, in which ``spark.read.format("seglog")`` works.

    Python workers run this process's interpreter, not the first ``python3`` on PATH; on a cluster, the one that
    ``spark.pyspark.python`` in ``config`` or ``PYSPARK_PYTHON`` names, as with an archive of `seglog spark package`.
    Raises `SeglogError` if that path does not exist here: the driver runs it, too. Without a Java on this machine, the
    session uses the one of ``pip install 'seglog[java]'``, or raises `MissingExtraError`. The JVM and the workers write
    their stderr to the file ``jvm_log``, if one is given, which is overwritten.
    """
    sql = require("pyspark.sql", "spark", purpose="a Spark session")
    running = sql.SparkSession.getActiveSession()
    if running is None:
        ensure_java(os.environ)
        os.environ["PYSPARK_PYTHON"] = python = _worker_python(master, config or {})
        os.environ["PYSPARK_DRIVER_PYTHON"] = python
        if master.startswith("local"):
            # A machine that cannot resolve its own name would not get as far as the first query.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with as_file(files("seglog.spark.runtime") / "log4j2.properties") as log4j, _stderr_to(jvm_log), _about_pandas_3():
        settings = {**DEFAULTS, **(config or {})}
        options = settings.get("spark.driver.extraJavaOptions", "")
        if "log4j" not in options:
            settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log4j.as_uri()} {options}".strip()
        builder = sql.SparkSession.builder.appName(app_name).master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        try:
            session: SparkSession = builder.getOrCreate()
        except Exception as error:
            if jvm_log is not None:
                error.add_note(f"The JVM's output is in {jvm_log}")
            raise
    return session


def _worker_python(master: str, config: Mapping[str, str]) -> str:
    """The interpreter of Python workers: those of executors, and those in which the driver plans."""
    if master.startswith("local"):
        return sys.executable
    python = config.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if os.path.dirname(python) and not os.path.exists(python):
        raise SeglogError(
            f"the driver plans with the workers' Python, and {python} does not exist in {os.getcwd()}; an archive must "
            f"be unpacked there, too: mkdir seglog && tar -xzf FILE.tar.gz -C seglog"
        )
    return python


@contextmanager
def _stderr_to(path: str | None) -> Iterator[None]:
    """Processes started inside write their stderr to ``path``. Of the whole process: for a moment, so does this one."""
    if path is None:
        yield
        return
    OsFs().write(path, b"")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    before = os.dup(2)
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(descriptor)


@contextmanager
def _about_pandas_3() -> Iterator[None]:
    """PySpark warns of pandas 3 as soon as it is installed; nothing here uses pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        yield
