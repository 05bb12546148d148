"""Rates and latencies, as the commands of `seglog perf` print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, fsum
from typing import Final

from seglog.cli.output import Out, format_size

_PERCENTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))


def print_rates(
    work: str,
    facts: Mapping[str, object],
    records: int,
    size: int,
    seconds: float,
    latencies: Sequence[float],
    *,
    latency_title: str,
    json: bool,
) -> None:
    """Print the amount of work, its rates, and the percentiles of ``latencies`` in seconds."""
    rate = records / seconds if seconds else 0.0
    mb = size / seconds / 1e6 if seconds else 0.0
    found = latencies_in_ms(latencies)
    with Out() as out:
        if json:
            done = {"records": records, "bytes": size, "seconds": round(seconds, 6)}
            rates = {"recordsPerSecond": round(rate, 1), "mbPerSecond": round(mb, 3), "latencyMs": found}
            out.json({"work": work, **facts, **done, **rates})
            return
        out.line(
            f"{work}: {records:,} records, {format_size(size)} in {seconds:.2f} s: "
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
