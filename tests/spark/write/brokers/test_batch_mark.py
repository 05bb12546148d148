"""The rules of the mark: who may decide which batch, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.client.produce.mark_value import MarkValue
from seglog.core.types import ProducerIdAndEpoch
from seglog.spark.write.brokers.batch_mark import (
    BatchMark,
    BatchMarkError,
    TaskTransaction,
    abort,
    decide,
    generation_for,
    is_decided,
    missing_before,
    read_mark,
)
from tests.cases import case

transactions = st.builds(
    TaskTransaction,
    st.integers(0, 1000),
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.integers(0, 50),
    st.builds(ProducerIdAndEpoch, st.integers(0, 2**62), st.integers(0, 32766)),
    st.booleans(),
    st.integers(0, 2**40),
)


def mark(batch: int, run: str = "r1", generation: int = 0, job: str = "j", closed: int = -1) -> BatchMark:
    return BatchMark(batch=batch, job=job, run=run, generation=generation, closed=closed)


@given(st.lists(transactions, max_size=5).map(tuple), st.integers(-1, 9), st.text(max_size=5))
def test_a_mark_is_read_as_it_was_written(some: tuple[TaskTransaction, ...], closed: int, run: str) -> None:
    case()
    written = replace(mark(3, run, 2, closed=closed), transactions=some)
    value = written.to_value()
    assert value.number == 4
    assert value.text.isascii()
    assert read_mark(value) == written
    assert read_mark(None) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "1", '{"version":2}', '{"version":1,"batch":"x"}'])
def test_the_mark_of_another_program_is_refused(text: str) -> None:
    with pytest.raises(BatchMarkError, match="is not of this sink"):
        read_mark(MarkValue(1, text))


def test_a_run_keeps_its_generation_and_another_takes_the_next() -> None:
    assert generation_for(None, "r1") == 0
    assert generation_for(mark(5, "r1", 3), "r1") == 3
    assert generation_for(mark(5, "r1", 3), "r2") == 4
    assert generation_for(mark(5, "r1", 3, closed=3), "r1") == 4
    assert generation_for(mark(5, "r1", 3, closed=7), "r2") == 8


@pytest.mark.parametrize("consecutive", [True, False])
def test_only_the_last_batch_of_a_stream_is_ever_repeated(consecutive: bool) -> None:
    assert not is_decided(None, 0, consecutive=consecutive)
    assert not is_decided(mark(4), 5, consecutive=consecutive)
    assert is_decided(mark(5), 5, consecutive=consecutive)
    if not consecutive:
        assert is_decided(mark(6), 5, consecutive=False)
        return
    with pytest.raises(BatchMarkError, match="batch 5 is over: the mark is of batch 6"):
        is_decided(mark(6), 5, consecutive=True)


def test_a_batch_needs_the_mark_of_the_one_before() -> None:
    assert missing_before(None, 0) is None
    assert missing_before(abort(None, mark(0)), 0) is None
    assert missing_before(mark(4), 5) is None
    assert "there is none" in (missing_before(None, 1) or "")
    assert "it is of batch 3" in (missing_before(mark(3), 5) or "")


def test_of_two_runs_of_one_batch_one_decides() -> None:
    before = mark(4, "r0", 2)
    first, second = mark(5, "r1", 3), mark(5, "r2", 3)
    assert decide(before, first) == first
    assert is_decided(first, 5, consecutive=True)
    with pytest.raises(BatchMarkError, match="written in generation 3, and now 4 is due"):
        decide(first, replace(second, batch=6))


@given(st.lists(st.tuples(st.sampled_from(["r1", "r2", "r3"]), st.sampled_from(["decide", "abort"])), max_size=8))
def test_aborted_run_never_decides_the_batch(steps: list[tuple[str, str]]) -> None:
    """Each step ends a batch that its run has begun when no step was done yet."""
    case()
    now: BatchMark | None = mark(4, "r1", 1)
    began = {run: mark(5, run, generation_for(now, run), job=run) for run in ("r1", "r2", "r3")}
    aborted = set()
    for run, step in steps:
        if is_decided(now, 5, consecutive=True):
            break
        if step == "abort":
            now = abort(now, began[run]) or now
            aborted.add(run)
            continue
        try:
            now = decide(now, began[run])
        except BatchMarkError:
            continue
        assert run not in aborted


def test_an_abort_after_the_decision_changes_nothing() -> None:
    assert abort(mark(5), mark(5)) is None
    assert abort(mark(6, "r2", 4), mark(5)) is None
