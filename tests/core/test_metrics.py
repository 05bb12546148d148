"""Prometheus' text format, held to its own grammar, and durations, held to a plain list."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from seglog.core.metrics import QUANTILES, Durations, Family, Sample, render
from tests import cases

_LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (\S+)')
_LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\[\\"n])*)"')
_UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@given(
    samples=st.lists(
        st.tuples(
            st.floats(allow_nan=False) | st.integers(-(2**53), 2**53),
            st.lists(st.tuples(st.just("topic") | st.just("group"), st.text()), max_size=3),
            st.sampled_from(["", "_count"]),
        )
    )
)
def test_rendered_metrics_parse_back(samples: list[tuple[float, list[tuple[str, str]], str]]) -> None:
    cases.case()
    text = render([Family("a_b", "gauge", "Help.", [Sample(*sample) for sample in samples])]).decode()
    first, second, *lines, last = text.split("\n")
    assert (first, second, last) == ("# HELP a_b Help.", "# TYPE a_b gauge", "")
    found = []
    for line in lines:
        match = _LINE.fullmatch(line)
        assert match is not None, line
        labels = [
            (name, re.sub(r"\\.", lambda escaped: _UNESCAPED[escaped[0]], value))
            for name, value in _LABEL.findall(match[2] or "")
        ]
        found.append((float(match[3]), labels, match[1].removeprefix("a_b")))
    assert found == samples


@given(st.lists(st.floats(0, 1e6), max_size=3000))
def test_durations_are_counted_and_the_last_ones_ranked(seconds: list[float]) -> None:
    cases.case()
    durations = Durations()
    for one in seconds:
        durations.add(one)
    assert (durations.count, durations.total) == (len(seconds), sum(seconds))
    last = seconds[-1024:]
    for fraction, found in zip(QUANTILES, durations.quantiles(), strict=True):
        if not last:
            assert found == 0
        else:
            assert sum(one < found for one in last) <= fraction * len(last)
            assert sum(one > found for one in last) <= (1 - fraction) * len(last) + 1e-9
