"""`seglog perf append|read|verify`: the speed of the engine on this machine and this disk."""

from __future__ import annotations

import os.path
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from random import Random
from typing import Annotated, Final, NamedTuple

import typer

from seglog.cli.options import JsonDocument, with_options
from seglog.cli.output import DAMAGE, FINE
from seglog.cli.perf.meter import TOPIC, CodecName, Meter, RecordSize, Seconds, now
from seglog.core.clock import SystemClock
from seglog.core.progress import progress
from seglog.records.batch import entries, read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from seglog.storage.offline.verify import measure
from seglog.storage.offline.verify import verify as verify_paths

_APPEND, _READ, _VERIFY = "append", "read", "verify"
_RECORDS: Final = 1_000_000
_FETCH: Final = 1 << 20
_DISTINCT: Final = 32
"""Batches of different contents, appended in turn."""
_OVERHEAD: Final = 8
"""Bytes of a record beside its value, roughly."""


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


class LoadOptions(NamedTuple):
    """The options of the load."""

    records: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of records.", show_default="1,000,000")
    ] = None
    record_size: RecordSize = 1024
    batch_size: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size of a batch, uncompressed.")] = 16_384
    codec: CodecName = "none"

    def load(self) -> PerfLoad:
        return PerfLoad(self.record_size, self.batch_size, Codec.parse(self.codec))


_DEFAULT_LOAD: Final = LoadOptions()
_Directory = Annotated[
    str | None,
    typer.Option("--dir", metavar="DIR", help=f"Use the topic {TOPIC} in this log directory and keep it."),
]


@with_options
def append(
    given: LoadOptions = _DEFAULT_LOAD,
    seconds: Seconds = None,
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
    seconds: Seconds = None,
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
        meter, is_damaged = _verify(os.path.join(path, f"{TOPIC}-0"))
        _print(work, load, meter, json=json)
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
    before = now()
    log.append(batch, origin=Origin.CLIENT)
    return PerfStep(records, len(batch), now() - before)


def _reads(log: Log, *, again: bool) -> Iterator[PerfStep]:
    """Read from the log's start to its end, a MiB at a time; with ``again``, repeat without end."""
    offset = log.log_start_offset
    while True:
        if offset >= log.high_watermark:
            if not again:
                return
            offset = log.log_start_offset
        before = now()
        fetched = log.read(offset, _FETCH)
        data = fetched.read()
        took = now() - before
        headers = [read_header(data, entry.position) for entry in entries(data)]
        offset = headers[-1].next_offset if headers else fetched.next_offset
        yield PerfStep(sum(header.records_count for header in headers), sum(header.size for header in headers), took)


def _run(work: str, steps: Iterator[PerfStep], most: int | None, limit: float | None) -> Meter:
    """Run steps up to a number of records or seconds (None: no limit). The seconds include the time between steps."""
    meter = Meter(work)
    for step in steps:
        meter.latencies.append(step.seconds)
        meter.add(step.records, step.bytes)
        if (limit is not None and meter.seconds >= limit) or (most is not None and meter.records >= most):
            break
    return meter


def _verify(path: str) -> tuple[Meter, bool]:
    """Check the whole partition; returns also whether it is damaged."""
    with progress(_VERIFY, measure([path])) as advance:
        meter = Meter(_VERIFY)
        verified = verify_paths([path], progress=advance)
    meter.add(verified.records, verified.bytes)
    return meter, verified.is_damaged


def _print(work: str, load: PerfLoad, meter: Meter, *, json: bool) -> None:
    facts = {"recordSize": load.record_size, "batchSize": load.batch_size, "codec": load.codec.name.lower()}
    meter.print(facts, latency_title=f"ms of each {work} ({len(meter.latencies):,})", json=json)
