"""Counters of a running broker, and Prometheus' text format. Pure.

A counter is a plain attribute; families of metrics are composed when a page is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""The quantiles of Kafka's histograms in the common rules of the JMX exporter."""
_KEPT: Final = 1024
"""How many durations the quantiles cover; a power of two. Kafka's samples have 1,028 (Yammer's)."""

Labels = Sequence[tuple[str, str]]


class Sample(NamedTuple):
    """One line; ``suffix`` is appended to the family's name."""

    value: float
    labels: Labels = ()
    suffix: str = ""


class Family(NamedTuple):
    """A metric with all its labels."""

    name: str
    kind: Literal["counter", "gauge", "summary"]
    help: str
    samples: Iterable[Sample]


class Durations:
    """Count and total of durations, and the quantiles of the last 1,024."""

    __slots__ = ("_last", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._last: list[float] = [0.0] * _KEPT

    def add(self, seconds: float) -> None:
        count = self.count
        self._last[count & (_KEPT - 1)] = seconds
        self.count = count + 1
        self.total += seconds

    def quantiles(self) -> list[float]:
        """Seconds: for each of `QUANTILES`, the least duration that so many did not exceed; 0.0 if there are none."""
        last = sorted(self._last[: self.count])
        if not last:
            return [0.0 for _ in QUANTILES]
        return [last[min(int(fraction * len(last)), len(last) - 1)] for fraction in QUANTILES]


def render(families: Iterable[Family]) -> bytes:
    r"""
    >>> family = Family("up_total", "counter", "Times.", [Sample(2, [("topic", 'a"b')]), Sample(0.5)])
    >>> print(render([family]).decode(), end="")
    # HELP up_total Times.
    # TYPE up_total counter
    up_total{topic="a\"b"} 2
    up_total 0.5
    """
    return "".join(lines(families)).encode()


def lines(families: Iterable[Family]) -> Iterator[str]:
    """One by one; samples are made on demand."""
    for name, kind, text, samples in families:
        yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        for value, labels, suffix in samples:
            inner = ",".join([f'{key}="{_escaped(one)}"' for key, one in labels])
            yield f"{name}{suffix}{{{inner}}} {value:.17g}\n" if inner else f"{name}{suffix} {value:.17g}\n"


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value
