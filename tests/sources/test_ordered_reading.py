"""Parts that threads read come in their order, once, in little memory; and errors at their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Event, Lock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.large_reads import await_turn
from seglog.sources import ordered_reading
from seglog.sources.ordered_reading import ReadPart, read_in_order
from tests.cases import case


def _batch(number: int, size: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([number] * size, pa.int64())], names=["number"])


def _numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [batch.column("number")[0].as_py() for batch in batches]


class Readers:
    """Opens readers of parts, and counts those that are open."""

    def __init__(self, read: Callable[[int], Iterator[pa.RecordBatch]]) -> None:
        self._read = read
        self._lock = Lock()
        self.open = 0

    @contextmanager
    def __call__(self) -> Iterator[ReadPart[int]]:
        with self._lock:
            self.open += 1
        try:
            yield self._read
        finally:
            with self._lock:
                self.open -= 1


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 5))
def test_batches_come_in_the_order_of_their_parts(sizes: list[int], threads: int) -> None:
    case()
    readers = Readers(lambda part: (_batch(100 * part + number) for number in range(sizes[part])))
    finished: list[int] = []
    found = read_in_order(range(len(sizes)), readers, threads=threads, on_finished=finished.append)
    assert _numbers(found) == [100 * part + number for part, size in enumerate(sizes) for number in range(size)]
    assert finished == list(range(len(sizes)))
    assert readers.open == 0


def test_threads_read_at_the_same_time() -> None:
    """Each of two parts waits until the other one is being read."""
    begun = [Event(), Event()]

    def read(part: int) -> Iterator[pa.RecordBatch]:
        begun[part].set()
        assert begun[1 - part].wait(30)
        yield _batch(part)

    assert _numbers(read_in_order(range(2), Readers(read), threads=2, on_finished=print)) == [0, 1]


def test_what_is_read_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first part is not finished, the others fill the room, and no more; then all of it comes."""
    monkeypatch.setattr(ordered_reading, "AHEAD_BYTES", 10 * _batch(0).nbytes)
    lock, made, most = Lock(), 0, 0
    is_full = Event()

    def read(part: int) -> Iterator[pa.RecordBatch]:
        nonlocal made, most
        if part == 0:
            assert is_full.wait(30)
            yield _batch(0)
            return
        for number in range(50):
            with lock:
                made += 1
                most = max(most, made)
                if made >= 10:
                    is_full.set()
            yield _batch(100 * part + number)

    def taken() -> Iterator[int]:
        nonlocal made
        for batch in read_in_order(range(4), Readers(read), threads=3, on_finished=print):
            with lock:
                made -= 1
            yield batch.column("number")[0].as_py()

    assert list(taken()) == [0, *(100 * part + number for part in (1, 2, 3) for number in range(50))]
    assert most <= 10 + 3 + 1  # the room, a batch in the hand of each thread, and one that the caller has taken


def test_a_batch_larger_than_all_the_room_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_reading, "AHEAD_BYTES", 1)
    readers = Readers(lambda part: iter([_batch(part, 100), _batch(part + 10, 100)]))
    assert _numbers(read_in_order(range(3), readers, threads=2, on_finished=print)) == [0, 10, 1, 11, 2, 12]


def test_large_reads_take_turns_in_the_order_of_the_parts() -> None:
    lock, large = Lock(), 0
    turns: list[int] = []

    def read(part: int) -> Iterator[pa.RecordBatch]:
        nonlocal large
        for number in range(3):
            await_turn()
            turns.append(part)
            with lock:
                large += 1
                assert large == 1
            made = _batch(10 * part + number)
            with lock:
                large -= 1
            yield made

    found = _numbers(read_in_order(range(6), Readers(read), threads=4, on_finished=print))
    assert found == [10 * part + number for part in range(6) for number in range(3)]
    assert turns == sorted(turns)


def test_a_caller_that_stops_frees_the_threads_that_wait_for_their_turn() -> None:
    begun, ended = ([Event() for _ in range(3)] for _ in range(2))

    def read(part: int) -> Iterator[pa.RecordBatch]:
        yield _batch(part)
        begun[part].set()
        try:
            await_turn()
        finally:
            ended[part].set()
        yield _batch(part)

    found = read_in_order(range(3), Readers(read), threads=3, on_finished=print)
    next(found)
    assert all(one.wait(30) for one in begun)  # a thread that comes later begins nothing
    del found  # a generator that is not used any more is closed
    assert all(one.wait(30) for one in ended)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_comes_after_the_batches_before_it(threads: int) -> None:
    def read(part: int) -> Iterator[pa.RecordBatch]:
        yield _batch(part)
        if part == 2:
            raise ValueError("part 2")

    batches = read_in_order(range(9), Readers(read), threads=threads, on_finished=print)
    assert _numbers(islice(batches, 3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="part 2"):
        next(batches)


@pytest.mark.parametrize("when", ["opened", "closed"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_reader_that_cannot_be_opened_or_closed(threads: int, when: str) -> None:
    @contextmanager
    def reader() -> Iterator[ReadPart[int]]:
        if when == "opened":
            raise OSError("no reader")
        yield lambda part: iter([_batch(part)])
        raise OSError("no reader")

    with pytest.raises(OSError, match="no reader"):
        list(read_in_order(range(5), reader, threads=threads, on_finished=print))


def test_a_caller_that_stops_waits_for_nothing() -> None:
    """A part that never comes holds up nobody, and once it comes, its thread ends."""
    release, is_closed = Event(), Event()

    def read(part: int) -> Iterator[pa.RecordBatch]:
        yield _batch(part)
        if part == 1:
            release.wait(30)
            yield _batch(part)

    @contextmanager
    def reader() -> Iterator[ReadPart[int]]:
        yield read
        is_closed.set()

    found = read_in_order(range(2), reader, threads=2, on_finished=print)
    next(found)
    del found
    release.set()
    assert is_closed.wait(30)
