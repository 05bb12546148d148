"""Counts what a command of `seglog perf` does, and prints rates and latencies; and the options that all have."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from math import ceil, fsum
from typing import Annotated, Final

import typer

from seglog.cli.output import Out, format_size
from seglog.core.clock import SystemClock
from seglog.records.compression import Codec

TOPIC: Final = "seglog-perf"
RecordSize = Annotated[int, typer.Option(metavar="BYTES", min=0, help="Size of a record's value.")]
CodecName = Annotated[
    str, typer.Option(metavar="|".join(one.name.lower() for one in Codec), help="Compression of batches.")
]
Seconds = Annotated[float | None, typer.Option(metavar="S", min=0.0, help="Stop after S seconds.", show_default=False)]
_REPORT_EVERY: Final = 1.0
_PERCENTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))


now = SystemClock().monotonic


class Meter:
    """Counts records and shows the rate once a second on a terminal."""

    def __init__(self, work: str) -> None:
        self._work = work
        self.records = self.bytes = 0
        self.began = self.ended = self._shown_at = now()
        self._shown_records = self._shown_bytes = 0
        self.latencies = array("d")
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()

    def begin(self) -> float:
        """Measure from now on: drop what was counted before. Returns the time."""
        del self.latencies[:]
        self.records = self.bytes = 0
        self.began = self.ended = now()
        return self.began

    def began_at_first_record(self) -> float:
        """The time before the first record does not count. Returns the time."""
        self.began = now()
        return self.began

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size
        self.ended = now()
        if self._is_shown and self.ended - self._shown_at >= _REPORT_EVERY:
            self._show()

    def _show(self) -> None:
        took = self.ended - self._shown_at
        rate = (self.records - self._shown_records) / took
        mb = (self.bytes - self._shown_bytes) / took / 1e6
        line = f"{self._work}: {self.records:,} records, {rate:,.0f} records/s, {mb:,.1f} MB/s"
        print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
        self._shown_at, self._shown_records, self._shown_bytes = self.ended, self.records, self.bytes

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def print(self, facts: Mapping[str, object], *, latency_title: str = "latency in ms", json: bool) -> None:
        """The amount of work, its rates, and the percentiles of the latencies, which are in seconds."""
        if self._is_shown:
            print(f"\r{'':<78}\r", end="", file=sys.stderr, flush=True)
        seconds = self.seconds
        rate = self.records / seconds if seconds else 0.0
        mb = self.bytes / seconds / 1e6 if seconds else 0.0
        found = latencies_in_ms(self.latencies)
        with Out() as out:
            if json:
                done = {"records": self.records, "bytes": self.bytes, "seconds": round(seconds, 6)}
                rates = {"recordsPerSecond": round(rate, 1), "mbPerSecond": round(mb, 3), "latencyMs": found}
                out.json({"work": self._work, **facts, **done, **rates})
                return
            out.line(
                f"{self._work}: {self.records:,} records, {format_size(self.bytes)} in {seconds:.2f} s: "
                f"{rate:,.0f} records/s, {mb:,.2f} MB/s"
            )
            if found is not None:
                out.line(f"{latency_title}: {', '.join(f'{name} {value:.3f}' for name, value in found.items())}")


def latencies_in_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles (nearest rank) in milliseconds; None without values.

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
