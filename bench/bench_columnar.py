"""How fast bytes become Arrow columns, columns bytes, and bytes are checked: `python -m bench.bench_columnar`.

One thread; medians of several rounds, rates by the bytes of the (uncompressed) batches; by CPU time they tell what a
core does however busy the machine is. Bytes and columns are in memory
and larger than the CPU's cache; compiling is done before. "values" is a decode of offset and value only; "validate"
is the CRC of every batch and a look at every record.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from seglog.records.batch_tables import check_compressed, walk_batches
from seglog.records.column_decoding import Selection, decode_parts
from seglog.records.column_encoding import encode_columns
from seglog.records.columns import COLUMNS, SourcePartition
from seglog.records.compression import Codec

ROUNDS: Final = 5
TOTAL: Final = 128 << 20
CHUNK_BATCHES: Final = 256
"""About the 4 MiB that a scan takes at a time."""


class Case(NamedTuple):
    """Rows as columns, and as the batches of 16 KiB that they make."""

    value_bytes: int
    codec: Codec
    columns: list[pa.RecordBatch]
    data: bytes
    plain_bytes: int
    records: int


def make_case(value_bytes: int, codec: Codec) -> Case:
    rows = TOTAL // (value_bytes + 8 + 12)
    rng = random.Random(1)
    # Half of each value is noise, so that a codec has something to do and something to gain.
    noise = rng.randbytes(1 << 20)
    half = value_bytes // 2
    values = [
        noise[at % (len(noise) - half) :][:half] + b"seglog! " * (half // 8 + 1) for at in range(0, 4096 * 61, 61)
    ]
    values = [value[:value_bytes] for value in values]
    columns = []
    for start in range(0, rows, 4096):
        count = min(4096, rows - start)
        columns.append(
            pa.RecordBatch.from_arrays(
                [
                    pa.array([b"%08d" % (start + n) for n in range(count)], pa.binary()),
                    pa.array(values[:count], pa.binary()),
                    pa.array([1_700_000_000_000 + start + n for n in range(count)], pa.int64()),
                ],
                names=["key", "value", "timestamp"],
            )
        )
    plain = sum(len(encode_columns(batch)) for batch in columns)
    data = b"".join(encode_columns(batch, codec=codec) for batch in columns)
    return Case(value_bytes, codec, columns, data, plain, rows)


def decode(case: Case, names: tuple[str, ...]) -> None:
    rows = 0
    for walked in walk_batches(case.data, rows=CHUNK_BATCHES):
        for decoded in decode_parts(case.data, walked.table, Selection(names), SourcePartition("topic", 0)):
            rows += 0 if decoded.rows is None else decoded.rows.num_rows
    assert rows == case.records


def validate(case: Case) -> None:
    for walked in walk_batches(case.data, check_records=True):
        check_compressed(case.data, walked.table)
        assert not walked.table["verdict"].any()


def encode(case: Case) -> None:
    for batch in case.columns:
        encode_columns(batch, codec=case.codec)


class Seconds(NamedTuple):
    """Medians of the rounds."""

    wall: float
    cpu: float


def measure(work: Callable[[], None]) -> Seconds:
    work()
    wall, cpu = [], []
    for _ in range(ROUNDS):
        started, used = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    return Seconds(statistics.median(wall), statistics.median(cpu))


def main() -> None:
    print(f"{'value':>6} {'codec':>6} {'what':>10} {'MB/s wall':>10} {'MB/s CPU':>10} {'records/s CPU':>14}")
    for codec in (Codec.NONE, Codec.ZSTD):
        for value_bytes in (100, 1000):
            case = make_case(value_bytes, codec)
            works: dict[str, Callable[[], None]] = {
                "decode": partial(decode, case, COLUMNS),
                "values": partial(decode, case, ("offset", "value")),
                "validate": partial(validate, case),
                "encode": partial(encode, case),
            }
            for name, work in works.items():
                wall, cpu = measure(work)
                print(
                    f"{value_bytes:>6} {codec.name.lower():>6} {name:>10} {case.plain_bytes / wall / 1e6:>10.0f}"
                    f" {case.plain_bytes / cpu / 1e6:>10.0f} {case.records / cpu:>14,.0f}"
                )


if __name__ == "__main__":
    main()
