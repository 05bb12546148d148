"""Refusals as a client sees them, in Produce and in the sessions of Fetch: with Kafka 4.4's codes and messages.

`tests/interop/test_sequences.py` holds the same, and all else, against a real Kafka.
"""

from __future__ import annotations

from typing import Any

import pytest

from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import Wire

START_MS = 1_600_000_000_000
FUTURE_MS = 4_000_000_000_000


@pytest.fixture
def topic(wire: Wire, topic_name: str) -> str:
    configs = [{"name": "cleanup.policy", "value": "compact"}]
    made = {"name": topic_name, "num_partitions": 2, "replication_factor": 1, "configs": configs}
    wire.ask(ApiKey.CREATE_TOPICS, topics=[made], timeout=30_000, validate_only=False)
    return topic_name


def batch(*records: tuple[bytes | None, int], **options: Any) -> bytes:
    """Of keys and timestamps."""
    return bytes(encode_batch([NewRecord(b"v", key, at) for key, at in records], **options))


def produce(wire: Wire, topic: str, data: bytes, version: int = 9) -> Any:
    topics = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    answer = wire.ask(ApiKey.PRODUCE, version, acks=1, timeout=30_000, transactional_id=None, topic_data=topics)
    return answer.responses[0].partition_responses[0]


def test_records_without_keys_are_named(wire: Wire, topic: str) -> None:
    answer = produce(wire, topic, batch((b"k", START_MS), (None, START_MS), (None, START_MS)))
    why = f"Compacted topic cannot accept message without key in topic partition {topic}-0"
    assert answer.error_code == 87
    assert [(one.batch_index, one.batch_index_error_message) for one in answer.record_errors] == [(1, why), (2, why)]
    assert answer.error_message == (
        "One or more records have been rejected due to 2 record errors in total, and only showing the first three "
        f"errors at most: [RecordError(batchIndex=1, message='{why}'), RecordError(batchIndex=2, message='{why}')]"
    )
    assert answer.log_start_offset == 0


def test_records_that_are_too_late_are_named(wire: Wire, topic: str) -> None:
    """One of them makes it an error of timestamps, whatever else there is."""
    answer = produce(wire, topic, batch((None, START_MS), (b"k", FUTURE_MS)))
    assert answer.error_code == 32
    assert answer.error_message == "One or more records have been rejected due to invalid timestamp"
    assert [one.batch_index for one in answer.record_errors] == [0, 1]
    assert answer.record_errors[1].batch_index_error_message.startswith(
        f"Timestamp {FUTURE_MS} of message with offset 1 is out of range. The timestamp should be within ["
    )


def test_a_batch_of_a_transaction_refuses_all_of_its_request(wire: Wire, topic: str) -> None:
    transactional = batch((b"k", START_MS), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    partitions = [{"index": 0, "records": batch((b"k", START_MS))}, {"index": 1, "records": transactional}]
    topics = [{"name": topic, "partition_data": partitions}]
    answer = wire.ask(ApiKey.PRODUCE, 9, acks=1, timeout=30_000, transactional_id=None, topic_data=topics)
    assert [one.error_code for one in answer.responses[0].partition_responses] == [53, 53]
    assert produce(wire, topic, batch((b"k", START_MS))).base_offset == 0


def test_zstd_needs_a_version_that_knows_it(wire: Wire, topic: str) -> None:
    data = batch((b"k", START_MS), codec=4)
    assert [produce(wire, topic, data, version).error_code for version in (6, 7)] == [76, 0]


def test_a_partition_that_is_named_twice_is_written_as_it_is_named_last(wire: Wire, topic: str) -> None:
    two = [{"index": 0, "records": batch(*[(b"k", START_MS)] * count)} for count in (1, 2)]
    topics = [{"name": topic, "partition_data": two}]
    answer = wire.ask(ApiKey.PRODUCE, 9, acks=1, timeout=30_000, transactional_id=None, topic_data=topics)
    assert [one.base_offset for one in answer.responses[0].partition_responses] == [0]
    assert produce(wire, topic, batch((b"k", START_MS))).base_offset == 2


@pytest.mark.parametrize("name", ["__mine", "__consumer_offsets_of_mine"])
def test_a_topic_is_internal_by_its_whole_name(wire: Wire, name: str) -> None:
    made = {"name": name, "num_partitions": 1, "replication_factor": 1}
    wire.ask(ApiKey.CREATE_TOPICS, topics=[made], timeout=30_000, validate_only=False)
    assert produce(wire, name, batch((b"k", START_MS))).error_code == 0


# Sessions


class Session:
    def __init__(self, wire: Wire, topic: str, epoch: int = -1) -> None:
        self._wire = wire
        self._topic = topic
        self.session_id = self.epoch = 0
        self.first = self.fetch(0, current_leader_epoch=epoch)

    def fetch(self, *partitions: int, forgets: tuple[int, ...] = (), version: int = 12, **fields: int) -> Any:
        wanted = [
            {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1000, **fields} for number in partitions
        ]
        forgotten = [{"topic": self._topic, "partitions": list(forgets)}] if forgets else []
        answer = self._wire.ask(
            ApiKey.FETCH,
            version,
            max_wait=0,
            min_bytes=0,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[{"topic": self._topic, "partitions": wanted}] if wanted else [],
            forgotten_topics_data=forgotten,
            rack_id="",
        )
        self.session_id = answer.session_id
        self.epoch += 1
        return answer


def told(answer: Any) -> dict[int, int]:
    return {one.partition_index: one.error_code for topic in answer.responses for one in topic.partitions}


def test_an_error_is_told_again_and_once_more_when_it_is_over(wire: Wire, topic: str) -> None:
    session = Session(wire, topic, epoch=7)
    assert [told(session.first), told(session.fetch()), told(session.fetch())] == [{0: 75}] * 3
    assert [told(session.fetch(0)), told(session.fetch())] == [{0: 0}, {}]


def test_a_session_without_partitions_ends(wire: Wire, topic: str) -> None:
    session = Session(wire, topic)
    before = session.session_id
    assert session.fetch(forgets=(0,)).session_id == 0
    session.session_id = before
    assert session.fetch().error_code == 70


def test_a_session_of_names_goes_on_with_names(wire: Wire, topic: str) -> None:
    session = Session(wire, topic)
    assert session.fetch(version=13).error_code == 106


def test_nothing_of_a_batch_that_does_not_fit_behind_another(wire: Wire, topic: str) -> None:
    data = batch((b"k", START_MS))
    topics = [{"name": topic, "partition_data": [{"index": number, "records": data} for number in (0, 1)]}]
    wire.ask(ApiKey.PRODUCE, 9, acks=1, timeout=30_000, transactional_id=None, topic_data=topics)
    wanted = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 50} for number in (0, 1)]
    contents = {"max_wait": 0, "min_bytes": 0, "max_bytes": 5000, "session_epoch": -1, "rack_id": ""}
    answer = wire.ask(ApiKey.FETCH, 11, **contents, topics=[{"topic": topic, "partitions": wanted}])
    first, second = (one.records for one in answer.responses[0].partitions)
    assert (len(first), len(second)) == (len(data), 0)
