"""The newest value of each key of one partition: in one task, by Spark's shuffle, and as one writes it without us.

Each side hands over all columns. ``max_by of records`` is the shuffle of every record; ``records`` only reads them.

    python -m bench spark_latest
    SEGLOG_BENCH_MB=1024 python -m bench spark_latest
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import seglog
from bench.segments import megabytes, rounds
from bench.sides import in_turn
from seglog.records.column_encoding import encode_columns
from seglog.spark import get_spark, latest
from seglog.spark.views.latest_frames import newest_of_parts

CORES: Final = 2
_VALUE_BYTES: Final = 100
_ROWS: Final = 1 << 13
_SHARES: Final = (0.01, 0.5)
"""Keys that there are, for each record."""


def main() -> None:
    count = (megabytes() << 20) // (_VALUE_BYTES + 8)
    print(f"{count:,} records of {_VALUE_BYTES} B, one partition, local[{CORES}], medians of {rounds()} rounds")
    with tempfile.TemporaryDirectory(prefix="seglog-latest-") as name:
        paths = {share: Path(name) / str(share) for share in _SHARES}
        for share, path in paths.items():
            _fill(path, count, max(int(count * share), 1))
        spark = get_spark("latest", master=f"local[{CORES}]", config={"spark.driver.memory": "2g"})
        try:
            for share, path in paths.items():
                costs = in_turn(_sides(spark, str(path)), rounds())
                print(f"{max(int(count * share), 1):,} keys")
                for side, cost in costs.items():
                    print(f"  {side:44} {cost.wall:6.2f} s  {count / cost.wall / 1e6:5.2f} M records/s", flush=True)
        finally:
            spark.stop()
    print(f"largest process of Python: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10} MiB")


def _fill(path: Path, count: int, keys: int) -> None:
    """One partition; each key is drawn again for each record."""
    rng = np.random.default_rng(1)
    with seglog.open(path) as directory:
        directory.create_topic("t", partitions=1, config={"segment.bytes": 64 << 20})
        log = directory.log("t")
        for first in range(0, count, _ROWS):
            rows = min(_ROWS, count - first)
            drawn = rng.integers(0, keys, rows)
            noise = rng.bytes(rows * _VALUE_BYTES)
            keys_drawn = pa.array([b"%08d" % key for key in drawn.tolist()], pa.binary())
            values = pa.array([noise[at : at + _VALUE_BYTES] for at in range(0, len(noise), _VALUE_BYTES)], pa.binary())
            columns = pa.RecordBatch.from_arrays([keys_drawn, values], names=["key", "value"])
            log.append(encode_columns(columns, batch_bytes=16_384), leader_epoch=0)


def _sides(spark: SparkSession, path: str) -> dict[str, Callable[[], None]]:
    def read(**options: str) -> DataFrame:
        return spark.read.format("seglog").options(path=path, **options).load()

    plain = "key,topic,partition,offset,isTombstone,value,timestamp,timestampType"
    frames: dict[str, Callable[[], DataFrame]] = {
        "view=latest": lambda: read(view="latest"),
        "view=latest, maxMemoryPerTask=16m": lambda: read(view="latest", maxMemoryPerTask="16m"),
        "seglog.spark.latest": lambda: latest(spark, {"path": path}),
        "max_by of records": lambda: newest_of_parts(read(columns=plain)).drop("isTombstone"),
        "records": read,
    }
    return {name: partial(_make_rows, make) for name, make in frames.items()}


def _make_rows(make: Callable[[], DataFrame]) -> None:
    make().write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main()
