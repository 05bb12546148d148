"""How many tasks Spark can run at once, as far as a planning process can see.

Spark gives a Python data source neither its configuration nor the number of executors. The command line of the driver's
JVM has the settings of the session and of ``spark-submit``, but not those of ``spark-defaults.conf``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from seglog.spark.runtime.processes import command_line, driver_pid

_FLAGS: Final = {
    "--master": "spark.master",
    "--total-executor-cores": "spark.cores.max",
    "--num-executors": "spark.executor.instances",
    "--executor-cores": "spark.executor.cores",
}
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]")


def driver_parallelism() -> int | None:
    """The parallelism of this planning process's driver; None if its command line does not tell."""
    return parallelism_of(settings_of(command_line(driver_pid())), os.cpu_count() or 1)


def settings_of(arguments: Sequence[str]) -> dict[str, str]:
    """Spark's settings on a command line.

    >>> settings_of(["java", "-Dspark.cores.max=8", "SparkSubmit", "--conf", "spark.master=local[2]", "pyspark-shell"])
    {'spark.cores.max': '8', 'spark.master': 'local[2]'}
    """
    found = {}
    for argument in arguments:
        if argument.startswith("-Dspark."):
            name, _, value = argument.removeprefix("-D").partition("=")
            found[name] = value
    for flag, value in pairwise(arguments):
        if flag in _FLAGS:
            found[_FLAGS[flag]] = value
        elif flag in ("--conf", "-c") and value.startswith("spark."):
            name, _, text = value.partition("=")
            found[name] = text
    return found


def parallelism_of(settings: Mapping[str, str], cpus: int) -> int | None:
    """The value of ``SparkContext.defaultParallelism`` once all executors are up.

    >>> parallelism_of({"spark.master": "local[*]"}, 16), parallelism_of({"spark.master": "spark://host:7077"}, 16)
    (16, None)
    >>> parallelism_of({"spark.executor.instances": "10", "spark.executor.cores": "4"}, 16)
    40
    """
    numbers = {name: int(value) for name, value in settings.items() if re.fullmatch(r"[1-9]\d{0,8}", value)}
    if "spark.default.parallelism" in numbers:
        return numbers["spark.default.parallelism"]
    master = settings.get("spark.master", "")
    if local := _LOCAL.fullmatch(master):
        return cpus if local[1] == "*" else int(local[1] or 1) or None
    if cluster := _LOCAL_CLUSTER.fullmatch(master):
        return int(cluster[1]) * int(cluster[2]) or None
    if "spark.cores.max" in numbers:
        return numbers["spark.cores.max"]
    executors = numbers.get("spark.executor.instances") or numbers.get("spark.dynamicAllocation.maxExecutors")
    return executors * numbers.get("spark.executor.cores", 1) if executors else None
