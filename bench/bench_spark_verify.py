"""`seglog.spark.jobs.verify` of one large segment, once the session is up, beside `DumpLogSegments --deep-iteration`.

SEGLOG_BENCH_MB=1024 python -m bench spark_verify
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import kafka
from bench.commands import run, show
from bench.connector import CORES
from bench.segments import Recipe, make, megabytes, rounds
from bench.sides import turn_about
from seglog.records.compression import Codec
from seglog.spark import get_spark
from seglog.spark.jobs.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RECIPES: Final = (Recipe(500), Recipe(100), Recipe(1000), Recipe(1000, Codec.ZSTD))


def main() -> None:
    print(f"verify on Spark, local[{CORES}], medians of {rounds()} rounds; {kafka.describe(kafka.TOOL)}")
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name:
        root = Path(name)
        spark = get_spark("seglog bench", master=f"local[{CORES}]", jvm_log=str(root / "spark.log"))
        try:
            for recipe in _RECIPES:
                made = make(root / "log", recipe, megabytes() << 20)
                print(f"{recipe}: {made.size / 1e6:.0f} MB, {made.records} records")
                command = kafka.dump_command(made.log, "--deep-iteration")

                show("whole job", turn_about(partial(_check, spark, root), partial(run, command), rounds()), made.size)
        finally:
            spark.stop()


def _check(spark: SparkSession, root: Path) -> None:
    assert not verify(spark, [str(root / "log")]).findings
