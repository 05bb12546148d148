"""The queue beside a broker that takes a sequence only if it is the next one, and forgets answers at random."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seglog.client.produce.partition_queue import PartitionQueue, QueuedBatch
from tests.cases import case


def batch(number: int) -> QueuedBatch:
    return QueuedBatch(b"%d" % number, 1, 0.0)


@given(st.integers(1, 12), st.integers(1, 5), st.data())
def test_every_batch_is_written_once_and_in_order(count: int, in_flight: int, data: st.DataObject) -> None:
    case()
    queue = PartitionQueue()
    for number in range(count):
        queue.add(batch(number))
    log: list[int] = []
    under_way: list[QueuedBatch] = []
    while queue:
        chosen = queue.next_batch() if len(under_way) < in_flight else None
        if chosen is not None and (not under_way or data.draw(st.booleans())):
            queue.send(chosen)
            under_way.append(chosen)
            continue
        oldest = under_way.pop(0)
        number = int(oldest.data)
        outcome = data.draw(st.sampled_from(["taken", "taken", "answer lost", "request lost"]))
        if outcome != "request lost" and number == len(log):
            log.append(number)
        is_there = number < len(log)
        if is_there and outcome == "taken":
            queue.acknowledge(oldest)
        else:
            queue.retry(oldest)
    assert log == list(range(count))
    assert queue.acknowledged == count


def test_a_batch_that_is_too_large_is_replaced_where_it_was() -> None:
    queue = PartitionQueue()
    whole, behind = batch(0), batch(2)
    queue.add(whole)
    queue.add(behind)
    queue.send(whole)
    queue.send(behind)
    halves = [batch(0), batch(1)]
    queue.replace(whole, halves)
    assert queue.next_batch() is None  # until the batch behind it is answered
    assert not queue.is_oldest(behind)
    queue.retry(behind)
    order = []
    while (chosen := queue.next_batch()) is not None:
        queue.send(chosen)
        order.append(int(chosen.data))
    assert order == [0, 1, 2]
