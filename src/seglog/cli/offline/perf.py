"""`seglog perf append|read|verify`: the speed of the engine on this machine and this disk."""

from __future__ import annotations

import os.path
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from math import ceil
from random import Random
from typing import Annotated, Final, NamedTuple

import typer

from seglog.cli.options import JsonDocument, with_options
from seglog.cli.output import DAMAGE, FINE, progress
from seglog.cli.rates import print_rates
from seglog.core.clock import SystemClock
from seglog.records.batch import entries, read_header
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
"""Batches of different contents, appended in turn."""
_OVERHEAD: Final = 8
"""Bytes of a record beside its value, roughly."""
_SHOW_EVERY: Final = 0.1
"""Seconds between two updates of the progress bar."""

_now = SystemClock().monotonic


class PerfStep(NamedTuple):
    """One append or read, and the seconds that it took."""

    records: int
    bytes: int
    seconds: float


class PerfLoad(NamedTuple):
    """The batches to append: values of ``record_size`` random bytes, up to ``batch_size`` per batch uncompressed."""

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


class PerfResult(NamedTuple):
    """The work done, the seconds it took, and the latency of each append or read (none for a verification)."""

    records: int
    bytes: int
    seconds: float
    latencies: Sequence[float] = ()


class LoadOptions(NamedTuple):
    """The options of the load."""

    records: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of records.", show_default="1,000,000")
    ] = None
    record_size: Annotated[int, typer.Option(metavar="BYTES", min=0, help="Size of a record's value.")] = 1024
    batch_size: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size of a batch, uncompressed.")] = 16_384
    codec: Annotated[
        str, typer.Option(metavar="|".join(one.name.lower() for one in Codec), help="Compression of batches.")
    ] = "none"

    def load(self) -> PerfLoad:
        return PerfLoad(self.record_size, self.batch_size, Codec.parse(self.codec))


_DEFAULT_LOAD: Final = LoadOptions()
_Seconds = Annotated[float | None, typer.Option(metavar="S", min=0.0, help="Stop after S seconds.")]
_Directory = Annotated[
    str | None,
    typer.Option("--dir", metavar="DIR", help=f"Use the topic {TOPIC} in this log directory and keep it."),
]


@with_options
def append(
    given: LoadOptions = _DEFAULT_LOAD,
    seconds: _Seconds = None,
    directory: _Directory = None,
    json: JsonDocument = False,
) -> int:
    """Append encoded batches to a log: records and MB per second, and the latency of each append.

    Without --dir, the log is in a temporary directory.
    """
    return _perf(_APPEND, given, seconds, directory, json=json)


@with_options
def read(
    given: LoadOptions = _DEFAULT_LOAD,
    seconds: _Seconds = None,
    directory: _Directory = None,
    json: JsonDocument = False,
) -> int:
    """Read a log: records and MB per second, and the latency of each read. Fill the log first if it is empty."""
    return _perf(_READ, given, seconds, directory, json=json)


@with_options
def verify(
    given: LoadOptions = _DEFAULT_LOAD,
    directory: _Directory = None,
    json: JsonDocument = False,
) -> int:
    """Verify a log. Fill it first if it is empty."""
    return _perf(_VERIFY, given, None, directory, json=json)


def _perf(work: str, given: LoadOptions, seconds: float | None, directory: str | None, *, json: bool) -> int:
    load = given.load()
    records = _RECORDS if given.records is None and seconds is None else given.records
    with _place(directory) as path:
        with LogDir.open(path, background=True) as opened:
            log = _log(opened, load)
            if work != _APPEND and log.log_end_offset == log.log_start_offset:
                _run(_APPEND, _appends(log, load, records or _RECORDS), None, None)
            if work == _APPEND:
                _print(work, load, _run(work, _appends(log, load, records), records, seconds), json=json)
            elif work == _READ:
                _print(work, load, _run(work, _reads(log, again=records is None), records, seconds), json=json)
        if work != _VERIFY:
            return FINE
        result, is_damaged = _verify(os.path.join(path, f"{TOPIC}-0"))
        _print(work, load, result, json=json)
    return DAMAGE if is_damaged else FINE


@contextmanager
def _place(directory: str | None) -> Iterator[str]:
    if directory is not None:
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="seglog-perf-") as path:
        yield os.path.join(path, "data")


def _log(directory: LogDir, load: PerfLoad) -> Log:
    if TOPIC not in directory.topic_names():
        largest = max(1 << 20, 2 * load.batch_size, 2 * load.record_size)
        directory.create_topic(TOPIC, config={"retention.ms": -1, "max.message.bytes": largest})
    return directory.log(TOPIC)


# The work, step by step


def _appends(log: Log, load: PerfLoad, records: int | None) -> Iterator[PerfStep]:
    """Append ``records``, or without end. A step does not include encoding its batch."""
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


def _append(log: Log, batch: bytes, records: int) -> PerfStep:
    before = _now()
    log.append(batch, origin=Origin.CLIENT)
    return PerfStep(records, len(batch), _now() - before)


def _reads(log: Log, *, again: bool) -> Iterator[PerfStep]:
    """Read from the log's start to its end, a MiB at a time; with ``again``, repeat without end."""
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
        yield PerfStep(sum(header.records_count for header in headers), sum(header.size for header in headers), took)


def _run(work: str, steps: Iterator[PerfStep], most: int | None, limit: float | None) -> PerfResult:
    """Run steps up to a number of records or seconds (None: no limit). The seconds include the time between steps."""
    latencies = array("d")
    records = total = 0
    whole = most or ceil((limit or 0) * 1000)
    with progress(work, whole) as advance:
        began = shown_at = now = _now()
        shown = 0
        for step in steps:
            records += step.records
            total += step.bytes
            latencies.append(step.seconds)
            now = _now()
            if now - shown_at >= _SHOW_EVERY:
                done = records if most else int((now - began) * 1000)
                advance(done - shown)
                shown, shown_at = done, now
            if (limit is not None and now - began >= limit) or (most is not None and records >= most):
                break
    return PerfResult(records, total, now - began, latencies)


def _verify(path: str) -> tuple[PerfResult, bool]:
    """Check the whole partition; returns also whether it is damaged."""
    with progress(_VERIFY, measure([path])) as advance:
        before = _now()
        verified = verify_paths([path], progress=advance)
        return PerfResult(verified.records, verified.bytes, _now() - before), verified.is_damaged


def _print(work: str, load: PerfLoad, result: PerfResult, *, json: bool) -> None:
    facts = {"recordSize": load.record_size, "batchSize": load.batch_size, "codec": load.codec.name.lower()}
    title = f"ms of each {work} ({len(result.latencies):,})"
    print_rates(
        *(work, facts, result.records, result.bytes, result.seconds, result.latencies), latency_title=title, json=json
    )
