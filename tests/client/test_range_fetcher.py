"""Which answers of a broker mean that a range has no more records, and which mean that they come later or are lost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from uuid import UUID

import pytest

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.range_fetcher import FetchTarget, RangeFetcher
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import DataLossError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.records.batch import entries, last_offset_of
from seglog.records.record import NewRecord, encode_batch
from tests.client.scripted_broker import TOPIC, FetchedPartition, ScriptedBroker

END = 10
LONG, SHORT = 60.0, 0.2
"""Seconds for which a partition may fail: in tests that see it recover, and in those that see it fail."""
BATCH = bytes(encode_batch([NewRecord(b"v")] * END, base_offset=0))
WHOLE = FetchedPartition(END, END, BATCH)
NOTHING = FetchedPartition(END, END)


class Fetched:
    """The offsets that a fetcher returned of each partition, and the losses it reported."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = {}
        self.losses: list[str] = []


def fetch(
    broker: ScriptedBroker,
    *,
    read_committed: bool = False,
    patience: float = LONG,
    partitions: int = 1,
    rack: str = "",
    fails: bool = False,
) -> Fetched:
    """Offsets 0 to before 10 of each partition."""
    config = ClientConfig.from_mapping(
        {"bootstrap.servers": str(broker.address), "retry.backoff.ms": "1", "client.rack": rack}, use="read"
    )
    targets = [
        FetchTarget(TopicPartition(TOPIC, number), UUID(int=1), 0, END, len(BATCH)) for number in range(partitions)
    ]
    found = Fetched()

    def lose(text: str) -> None:
        if fails:
            raise DataLossError(text)
        found.losses.append(text)

    with ClusterConnections(config) as cluster:
        fetcher = RangeFetcher(cluster, targets, read_committed=read_committed, patience=patience, lose=lose)
        for fetched in fetcher:
            upto = fetched.position
            for entry in entries(fetched.records):
                upto = last_offset_of(fetched.records, entry) + 1
                number = fetched.target.topic_partition.partition
                found.offsets.setdefault(number, []).extend(range(max(entry.offset, fetched.position), upto))
            fetcher.advance(fetched, upto)
    return found


def script(*answers: FetchedPartition) -> list[Mapping[int, FetchedPartition]]:
    return [{0: one} for one in answers]


_NOT_YET = {
    "the high watermark of a new leader": FetchedPartition(4, 4),
    "no known high watermark": FetchedPartition(-1, -1),
    "a log that diverges": FetchedPartition(END, END, diverging=3),
    "no partition": FetchedPartition(END, END, is_left_out=True),
    "a batch that is cut off": FetchedPartition(END, END, BATCH[:40]),
    "an error": FetchedPartition(END, END, error=ErrorCode.UNKNOWN_LEADER_EPOCH),
    "an offset that the log reaches again": FetchedPartition(END, END, error=ErrorCode.OFFSET_OUT_OF_RANGE),
    "a nearer replica that is unknown": FetchedPartition(END, END, preferred=7),
}
_NOT_YET_COMMITTED = {
    "the last stable offset of a new leader": FetchedPartition(END, 4),
    "no known last stable offset": FetchedPartition(END, -1),
    **_NOT_YET,
}


@pytest.mark.parametrize("what", _NOT_YET_COMMITTED)
@pytest.mark.parametrize("read_committed", [False, True])
def test_waits_for_records_that_the_broker_cannot_return_yet(what: str, read_committed: bool) -> None:
    answer = _NOT_YET_COMMITTED[what]
    if not read_committed and what not in _NOT_YET:  # what a broker before Kafka 2.x, or a transaction, looks like
        with ScriptedBroker(*script(answer, answer, answer, WHOLE)) as broker:
            assert fetch(broker).offsets == {}
        return
    with ScriptedBroker(*script(*[answer] * 7, WHOLE)) as broker:
        found = fetch(broker, read_committed=read_committed)
    assert found.offsets == {0: list(range(END))}
    assert not found.losses


@pytest.mark.parametrize("what", _NOT_YET_COMMITTED)
def test_an_answer_that_stays_so_fails_by_the_poll_timeout(what: str) -> None:
    message = r"t-0: no records from offset 0 on for 0\.2 seconds: "
    with (
        ScriptedBroker(*script(_NOT_YET_COMMITTED[what])) as broker,
        pytest.raises(RequestFailedError, match=message) as raised,
    ):
        fetch(broker, read_committed=True, patience=SHORT)
    if what == "the last stable offset of a new leader":
        assert "the last stable offset is 4, the range ends at 10" in str(raised.value)


@pytest.mark.parametrize("read_committed", [False, True])
def test_a_range_without_records_ends_after_three_answers(read_committed: bool) -> None:
    """As compaction leaves it."""
    with ScriptedBroker(*script(FetchedPartition(END - 1, END - 1), NOTHING)) as broker:
        found = fetch(broker, read_committed=read_committed)
        assert len(broker.fetches) == 4
    assert not found.offsets
    assert not found.losses


def test_full_answers_are_no_evidence() -> None:
    """An answer that had no room for a partition says nothing about it, however often."""
    full = {0: WHOLE, 1: NOTHING, 2: NOTHING, 3: NOTHING}
    answers = [full, {1: WHOLE, 2: NOTHING, 3: NOTHING}, {2: WHOLE, 3: NOTHING}, {3: NOTHING}, {3: WHOLE}]
    with ScriptedBroker(*answers, partitions=4) as broker:
        found = fetch(broker, partitions=4)
    assert found.offsets == {number: list(range(END)) for number in range(4)}


def test_a_cut_batch_of_a_full_answer_goes_first_the_next_time() -> None:
    cut = FetchedPartition(END, END, BATCH[:40])
    with ScriptedBroker({0: WHOLE, 1: NOTHING, 2: cut}, {1: WHOLE, 2: WHOLE}, partitions=3) as broker:
        found = fetch(broker, partitions=3)
    assert found.offsets == {number: list(range(END)) for number in range(3)}


def test_a_throttled_answer_is_no_failure() -> None:
    quiet = FetchedPartition(is_left_out=True, throttle_ms=1)
    with ScriptedBroker(*script(*[quiet] * 5, WHOLE)) as broker:
        assert fetch(broker, patience=0).offsets == {0: list(range(END))}


# A nearer replica


def test_a_follower_that_lags_sends_the_fetcher_back_to_the_leader() -> None:
    """The leader refers a client with a rack to the follower in each answer, without any records."""
    with ExitStack() as stack:
        follower = stack.enter_context(ScriptedBroker(*script(FetchedPartition(3, 3)), node=1))
        leader = stack.enter_context(_Leader(FetchedPartition(END, END, preferred=1), WHOLE))
        leader.others = (follower,)
        found = fetch(leader, rack="here", read_committed=True)
        assert [one.rack for one in leader.fetches] == ["here", ""]
        assert len(follower.fetches) == 1
    assert found.offsets == {0: list(range(END))}


class _Leader(ScriptedBroker):
    """Answers a client with a rack in another way than one without."""

    def __init__(self, with_rack: FetchedPartition, without: FetchedPartition) -> None:
        super().__init__({0: without})
        self._with_rack = with_rack

    def answer(self, rack: str) -> Mapping[int, FetchedPartition]:
        return {0: self._with_rack} if rack else super().answer(rack)


# Losses


_LOSSES = {
    "deleted": r"t-0 was deleted: offsets 0 to 9 of t-0 were not read",
    "created again": r"topic t was deleted and created again: offsets 0 to 9 of t-0 were not read",
    "emptied": r"t-0: offsets 0 to 9 were deleted before they were read",
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("what", _LOSSES)
def test_a_loss_names_partition_and_offsets(what: str, fails: bool) -> None:
    code = ErrorCode.OFFSET_OUT_OF_RANGE if what == "emptied" else ErrorCode.UNKNOWN_TOPIC_ID
    with ScriptedBroker(*script(FetchedPartition(error=code))) as broker:
        broker.offsets = (END, END) if what == "emptied" else (0, END)
        broker.topic_id = {"deleted": None, "created again": UUID(int=2)}.get(what, UUID(int=1))
        if fails:
            with pytest.raises(DataLossError, match=_LOSSES[what]):
                fetch(broker, patience=SHORT, fails=True)
            return
        found = fetch(broker, patience=SHORT)
    assert not found.offsets
    (loss,) = found.losses
    assert loss.startswith(_LOSSES[what])


def test_records_below_the_log_start_offset_are_lost_and_the_others_are_read() -> None:
    with ScriptedBroker(*script(FetchedPartition(error=ErrorCode.OFFSET_OUT_OF_RANGE), WHOLE)) as broker:
        broker.offsets = (4, END)
        found = fetch(broker)
    assert found.offsets == {0: list(range(4, END))}
    assert found.losses == ["t-0: offsets 0 to 3 were deleted before they were read"]


@pytest.mark.parametrize("patience", [SHORT, LONG])
def test_a_log_that_an_unclean_election_truncated_is_a_loss_unless_it_grows_again(patience: float) -> None:
    """A new leader may not know its high watermark yet, so the fetcher asks again for a while."""
    few = FetchedPartition(END, END, bytes(encode_batch([NewRecord(b"v")] * 4, base_offset=0)))
    beyond = FetchedPartition(error=ErrorCode.OFFSET_OUT_OF_RANGE)
    rest = [WHOLE] if patience == LONG else []
    with ScriptedBroker(*script(few, beyond, beyond, *rest)) as broker:
        broker.offsets = (0, 2)
        found = fetch(broker, patience=patience)
    if patience == LONG:
        assert found.offsets == {0: list(range(END))}
        assert not found.losses
    else:
        assert found.offsets == {0: [0, 1, 2, 3]}
        assert found.losses == ["t-0 ends with offset 1: offsets 4 to 9 were truncated"]
