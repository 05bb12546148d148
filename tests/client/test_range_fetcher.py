"""Which answers of a broker mean that a range has no more records, and which mean that they come later or are lost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from uuid import UUID

import pytest

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import BrokerAddress, ClusterConnections
from seglog.client.range_fetcher import FetchTarget, RangeFetcher
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import DataLossError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.records.batch import entries, last_offset_of
from seglog.records.record import NewRecord, encode_batch
from tests.client.scripted_broker import PLANNED_ID, TOPIC, FetchedPartition, ScriptedBroker

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
    planned: BrokerAddress | None = None,
) -> Fetched:
    """Offsets 0 to before 10 of each partition, which the broker led when they were planned, or ``planned`` did."""
    config = ClientConfig.from_mapping(
        {"bootstrap.servers": str(broker.address), "retry.backoff.ms": "1", "client.rack": rack}, use="read"
    )
    leader = planned or BrokerAddress(broker.node, broker.address)
    targets = [
        FetchTarget(TopicPartition(TOPIC, number), PLANNED_ID, 0, END, len(BATCH), leader)
        for number in range(partitions)
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


@pytest.fixture(params=[12, 13])
def version(request: pytest.FixtureRequest) -> int:
    """Of Fetch: before 13, it has no topic ids, and the fetcher looks up all leaders and ids first."""
    found: int = request.param
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
def test_waits_for_records_that_the_broker_cannot_return_yet(what: str, read_committed: bool, version: int) -> None:
    answer = _NOT_YET_COMMITTED[what]
    if not read_committed and what not in _NOT_YET:  # what a broker before Kafka 2.x, or a transaction, looks like
        with ScriptedBroker(*script(answer, answer, answer, WHOLE)) as broker:
            assert fetch(broker).offsets == {}
        return
    with ScriptedBroker(*script(*[answer] * 7, WHOLE), fetch_version=version) as broker:
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


# The leaders of the plan


def test_a_planned_leader_is_asked_without_a_look_up(version: int) -> None:
    """If Fetch has ids: otherwise it might return the records of a topic that was created again."""
    with ScriptedBroker({0: WHOLE, 1: WHOLE}, partitions=2, fetch_version=version) as broker:
        assert fetch(broker, partitions=2).offsets == {0: list(range(END)), 1: list(range(END))}
        assert broker.look_ups == (version < 13)
        broker.topic_id = UUID(int=2)
        if version < 13:
            (loss,) = fetch(broker).losses
            assert loss == "topic t was deleted and created again: offsets 0 to 9 of t-0 were not read"


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, None])
def test_a_partition_whose_planned_leader_is_another_broker_now(code: ErrorCode | None) -> None:
    """It answers that it does not lead, or it is gone."""
    with ExitStack() as stack:
        former = ScriptedBroker(*script(FetchedPartition(error=code or ErrorCode.NONE)), node=1, fetch_version=13)
        broker = stack.enter_context(ScriptedBroker(*script(WHOLE), fetch_version=13))
        planned = BrokerAddress(1, former.address)
        if code is None:
            with former:
                pass
        else:
            stack.enter_context(former)
        found = fetch(broker, planned=planned)
        assert (len(former.fetches), broker.look_ups) == (0 if code is None else 1, 1)
    assert found.offsets == {0: list(range(END))}
    assert not found.losses


# A nearer replica


def test_a_follower_that_lags_sends_the_fetcher_back_to_the_leader(version: int) -> None:
    """The leader refers a client with a rack to the follower in each answer, without any records."""
    with ExitStack() as stack:
        follower = stack.enter_context(ScriptedBroker(*script(FetchedPartition(3, 3)), node=1, fetch_version=version))
        leader = stack.enter_context(_Leader(FetchedPartition(END, END, preferred=1), WHOLE, version))
        leader.others = (follower,)
        found = fetch(leader, rack="here", read_committed=True)
        assert [one.rack for one in leader.fetches] == ["here", ""]
        assert len(follower.fetches) == 1
    assert found.offsets == {0: list(range(END))}


class _Leader(ScriptedBroker):
    """Answers a client with a rack in another way than one without."""

    def __init__(self, with_rack: FetchedPartition, without: FetchedPartition, version: int) -> None:
        super().__init__({0: without}, fetch_version=version)
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
def test_a_loss_names_partition_and_offsets(what: str, fails: bool, version: int) -> None:
    code = ErrorCode.OFFSET_OUT_OF_RANGE if what == "emptied" else ErrorCode.UNKNOWN_TOPIC_ID
    with ScriptedBroker(*script(FetchedPartition(error=code)), fetch_version=version) as broker:
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
def test_a_log_truncated_by_an_unclean_election_is_a_loss_unless_it_grows_again(patience: float, version: int) -> None:
    """A new leader may not know its high watermark yet, so the fetcher asks again for a while."""
    few = FetchedPartition(END, END, bytes(encode_batch([NewRecord(b"v")] * 4, base_offset=0)))
    beyond = FetchedPartition(error=ErrorCode.OFFSET_OUT_OF_RANGE)
    rest = [WHOLE] if patience == LONG else []
    with ScriptedBroker(*script(few, beyond, beyond, *rest), fetch_version=version) as broker:
        broker.offsets = (0, 2)
        found = fetch(broker, patience=patience)
    if patience == LONG:
        assert found.offsets == {0: list(range(END))}
        assert not found.losses
    else:
        assert found.offsets == {0: [0, 1, 2, 3]}
        assert found.losses == ["t-0 ends with offset 1: offsets 4 to 9 were truncated"]
