"""`seglog perf append|read|verify`: how fast the engine is on this machine and this disk."""

from __future__ import annotations

import os.path
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from math import ceil, fsum
from random import Random
from typing import Annotated, Final, NamedTuple

import typer

from seglog.cli.options import with_options
from seglog.cli.output import DAMAGE, FINE, Out, format_size, progress
from seglog.core.clock import SystemClock
from seglog.records.batch import BatchHeader, entries, read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from seglog.storage.offline.verify import measure
from seglog.storage.offline.verify import verify as verify_paths

TOPIC: Final = "seglog-perf"
_APPEND, _READ, _VERIFY = "append", "read", "verify"
_RECORDS: Final = 1_000_000
_FETCH: Final = 1 << 20
_DISTINCT: Final = 32
"""Batches of different contents, which are appended again and again."""
_OVERHEAD: Final = 8
"""Bytes of a record beside its value, about."""
_SHOW_EVERY: Final = 0.1
"""Seconds between two looks at the progress bar."""
_PERCENTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))

_now = SystemClock().monotonic


class Step(NamedTuple):
    """One append or read, and the seconds that it took."""

    records: int
    bytes: int
    seconds: float


class Load(NamedTuple):
    """What is appended: values of ``record_size`` random bytes, in batches of at most ``batch_size`` uncompressed."""

    record_size: int
    batch_size: int
    codec: Codec

    @property
    def batch_records(self) -> int:
        return max(1, self.batch_size // (self.record_size + _OVERHEAD))

    def batch(self, records: int, rng: Random) -> bytes:
        now_ms = SystemClock().now_ms()
        made = [NewRecord(rng.randbytes(self.record_size), timestamp=now_ms) for _ in range(records)]
        return bytes(encode_batch(made, codec=self.codec))


class Limit(NamedTuple):
    """When to stop: after so many records or seconds, whichever comes first; None: not by that."""

    records: int | None
    seconds: float | None


class Result(NamedTuple):
    """What was done in how many seconds, and how long each append or read took (nothing of a verification's parts)."""

    records: int
    bytes: int
    seconds: float
    latencies: Sequence[float] = ()


class Given(NamedTuple):
    """What is to be appended."""

    records: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many records.", show_default="1,000,000")
    ] = None
    record_size: Annotated[int, typer.Option(metavar="BYTES", min=0, help="Size of a record's value.")] = 1024
    batch_size: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size of a batch, uncompressed.")] = 16_384
    codec: Annotated[str, typer.Option(metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")] = "none"

    def load(self) -> Load:
        return Load(self.record_size, self.batch_size, Codec.parse(self.codec))


_BY_DEFAULT: Final = Given()
_Seconds = Annotated[float | None, typer.Option(metavar="S", min=0.0, help="Stop after so many seconds.")]
_Directory = Annotated[
    str | None,
    typer.Option("--dir", metavar="DIR", help=f"Use the topic {TOPIC} of this log directory, and keep it."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@with_options
def append(
    given: Given = _BY_DEFAULT,
    seconds: _Seconds = None,
    directory: _Directory = None,
    json: _Json = False,
) -> int:
    """Append ready batches to a log: records and MB a second, and how long each append takes.

    Works in a temporary directory that is removed, unless there is a --dir.
    """
    return _perf(_APPEND, given, seconds, directory, json=json)


@with_options
def read(
    given: Given = _BY_DEFAULT,
    seconds: _Seconds = None,
    directory: _Directory = None,
    json: _Json = False,
) -> int:
    """Read a log, to which records are appended first where there are none: how fast, and how long each read takes."""
    return _perf(_READ, given, seconds, directory, json=json)


@with_options
def verify(
    given: Given = _BY_DEFAULT,
    directory: _Directory = None,
    json: _Json = False,
) -> int:
    """Verify a log, to which records are appended first where there are none."""
    return _perf(_VERIFY, given, None, directory, json=json)


def _perf(work: str, given: Given, seconds: float | None, directory: str | None, *, json: bool) -> int:
    load = given.load()
    limit = Limit(_RECORDS if given.records is None and seconds is None else given.records, seconds)
    out = Out()
    with _place(directory) as path:
        with LogDir.open(path, background=True) as opened:
            log = _log(opened, load)
            if work != _APPEND and log.log_end_offset == log.log_start_offset:
                _run(_APPEND, _appends(log, load, limit.records or _RECORDS), Limit(None, None))
            if work == _APPEND:
                _print(out, work, load, _run(work, _appends(log, load, limit.records), limit), json=json)
            elif work == _READ:
                _print(out, work, load, _run(work, _reads(log, again=limit.records is None), limit), json=json)
        if work != _VERIFY:
            return FINE
        result, is_damaged = _verify(os.path.join(path, f"{TOPIC}-0"))
        _print(out, work, load, result, json=json)
    return DAMAGE if is_damaged else FINE


@contextmanager
def _place(directory: str | None) -> Iterator[str]:
    if directory is not None:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="seglog-perf-") as path:
        yield os.path.join(path, "data")


def _log(directory: LogDir, load: Load) -> Log:
    if TOPIC not in directory.topic_names():
        largest = max(1 << 20, 2 * load.batch_size, 2 * load.record_size)
        directory.create_topic(TOPIC, config={"retention.ms": -1, "max.message.bytes": largest})
    return directory.log(TOPIC)


# The work, step by step


def _appends(log: Log, load: Load, records: int | None) -> Iterator[Step]:
    """Append ``records``, or without end; making the batches is in no step."""
    rng = Random(1)
    each = load.batch_records
    whole = None if records is None else records // each
    distinct = _DISTINCT if whole is None else min(_DISTINCT, whole)
    batches = [load.batch(each, rng) for _ in range(distinct)]
    for number, batch in enumerate(cycle(batches)):
        if number == whole:
            break
        yield _append(log, batch, each)
    if records is not None and records % each:
        yield _append(log, load.batch(records % each, rng), records % each)


def _append(log: Log, batch: bytes, records: int) -> Step:
    before = _now()
    log.append(batch, origin=Origin.CLIENT)
    return Step(records, len(batch), _now() - before)


def _reads(log: Log, *, again: bool) -> Iterator[Step]:
    """Read from the log's start to its end a MiB at a time; ``again`` and again."""
    offset = log.log_start_offset
    while True:
        if offset >= log.high_watermark:
            if not again:
                return
            offset = log.log_start_offset
        before = _now()
        fetched = log.read(offset, _FETCH)
        data = fetched.read()
        took = _now() - before
        headers = [read_header(data, entry.position) for entry in entries(data)]
        offset = headers[-1].next_offset if headers else fetched.next_offset
        yield Step(sum(header.records_count for header in headers), _size(headers), took)


def _size(headers: Sequence[BatchHeader]) -> int:
    return sum(header.size for header in headers)


def _run(work: str, steps: Iterator[Step], limit: Limit) -> Result:
    """Take steps up to the limit; what they do in between counts in the seconds, too."""
    latencies = array("d")
    records = total = 0
    whole = limit.records or ceil((limit.seconds or 0) * 1000)
    with progress(work, whole) as advance:
        began = shown_at = now = _now()
        shown = 0
        for step in steps:
            records += step.records
            total += step.bytes
            latencies.append(step.seconds)
            now = _now()
            if now - shown_at >= _SHOW_EVERY:
                done = records if limit.records else int((now - began) * 1000)
                advance(done - shown)
                shown, shown_at = done, now
            if limit.seconds is not None and now - began >= limit.seconds:
                break
            if limit.records is not None and records >= limit.records:
                break
    return Result(records, total, now - began, latencies)


def _verify(path: str) -> tuple[Result, bool]:
    """Check the whole partition; whether it is damaged."""
    with progress(_VERIFY, measure([path])) as advance:
        before = _now()
        verified = verify_paths([path], progress=advance)
        return Result(verified.records, verified.bytes, _now() - before), verified.is_damaged


# What came of it


def _print(out: Out, work: str, load: Load, result: Result, *, json: bool) -> None:
    per_second = result.records / result.seconds if result.seconds else 0.0
    mb_per_second = result.bytes / result.seconds / 1e6 if result.seconds else 0.0
    latencies = latencies_in_ms(result.latencies)
    if json:
        out.json(
            {
                "work": work,
                "recordSize": load.record_size,
                "batchSize": load.batch_size,
                "codec": load.codec.name.lower(),
                "records": result.records,
                "bytes": result.bytes,
                "seconds": round(result.seconds, 6),
                "recordsPerSecond": round(per_second, 1),
                "mbPerSecond": round(mb_per_second, 3),
                "latencyMs": latencies,
            }
        )
    else:
        out.line(
            f"{work}: {result.records:,} records, {format_size(result.bytes)} in {result.seconds:.2f} s: "
            f"{per_second:,.0f} records/s, {mb_per_second:,.1f} MB/s"
        )
        if latencies is not None:
            shown = ", ".join(f"{name} {value:.3f}" for name, value in latencies.items())
            out.line(f"ms of each {work} ({len(result.latencies):,}): {shown}")
    out.flush()


def latencies_in_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles (nearest rank) in milliseconds; None of nothing.

    >>> latencies_in_ms([0.004, 0.001, 0.002, 0.003])
    {'mean': 2.5, 'p50': 2.0, 'p95': 4.0, 'p99': 4.0, 'p999': 4.0, 'max': 4.0}
    """
    if not seconds:
        return None
    ordered = sorted(seconds)
    found = {"mean": fsum(ordered) / len(ordered)}
    for name, part in _PERCENTILES:
        found[name] = ordered[ceil(part * len(ordered)) - 1]
    return {name: round(value * 1000, 6) for name, value in found.items()}
