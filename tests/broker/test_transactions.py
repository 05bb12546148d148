"""Transactions as clients see them: by hand where the rule is in a response, else by librdkafka, aiokafka and
kafka-python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from seglog.testing import Broker
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.group_client import versions
from tests.broker.python_clients import aiokafka, kafka
from tests.broker.transactional_producer import (
    ABORTABLE,
    FENCED,
    INVALID_EPOCH,
    INVALID_STATE,
    NO_ID,
    NO_SUCH_PRODUCER,
    NOT_ATTEMPTED,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER,
    UNKNOWN_TOPIC,
    UNSTABLE,
    TransactionalProducer,
    fetch,
    stable_end,
)
from tests.kit.waiting import wait_until

SECONDS: Final = 60


@pytest.fixture(params=[0, 2], ids=["version0", "version2"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def read_committed(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Read ``count`` values, then to the end of the log, as a read_committed consumer."""
    consumer: Any = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reads-{topic}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while (message := consumer.poll(SECONDS)) is not None:
        if message.error():
            if len(values) >= count:
                break
            continue
        values.append(message.value())
    consumer.close()
    return values


# Answers


def test_committed_is_read_and_aborted_is_not(broker: RunningNode, wire: Wire, topic: str, version: int) -> None:
    producer = TransactionalProducer(wire, topic, version)
    expected = []
    for round_ in range(6):
        assert producer.send(topic, b"%d" % round_) == 0
        assert producer.end(commit=round_ % 2 == 0).error_code == 0
        if round_ % 2 == 0:
            expected.append(b"%d" % round_)
    assert read_committed(broker.bootstrap, topic, 3) == expected


def test_stable_offset_waits_for_the_marker(wire: Wire, topic: str, version: int) -> None:
    producer = TransactionalProducer(wire, topic, version)
    assert producer.send(topic, b"a") == 0
    assert stable_end(wire, topic) == 0
    producer.end()
    while stable_end(wire, topic) == 0:  # the marker follows the answer
        pass
    assert stable_end(wire, topic) == 2


def test_aborted_transactions_are_listed_in_the_order_of_their_first_offsets(wire: Wire, topic: str) -> None:
    """Redpanda listed them in the order of their ends, and clients filtered the wrong records."""
    producers = [TransactionalProducer(wire, f"{topic}-{number}") for number in range(3)]
    for producer in producers:
        assert producer.send(topic, b"x") == 0
    for producer in reversed(producers):
        producer.end(commit=False)
        while producer.produce(topic, b"y") != 0:
            pass
        producer.end(commit=True)
    while stable_end(wire, topic) < fetch(wire, topic).high_watermark:
        pass
    firsts = [one.first_offset for one in fetch(wire, topic).aborted_transactions]
    assert firsts == sorted(firsts) == [0, 1, 2]


def test_repeated_end_gets_the_same_answer(wire: Wire, topic: str) -> None:
    producer = TransactionalProducer(wire, topic)
    producer.send(topic, b"a")
    before = producer.named
    first = producer.end()
    again = producer.until_free(lambda: wire.ask(ApiKey.END_TXN, 5, **before, committed=True))
    assert (again.error_code, again.producer_id, again.producer_epoch) == (0, first.producer_id, first.producer_epoch)


@pytest.mark.parametrize(
    ("key", "asked", "code"),
    [
        (ApiKey.INIT_PRODUCER_ID, 3, INVALID_EPOCH),
        (ApiKey.INIT_PRODUCER_ID, 4, FENCED),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 1, INVALID_EPOCH),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 2, FENCED),
        (ApiKey.ADD_OFFSETS_TO_TXN, 1, INVALID_EPOCH),
        (ApiKey.ADD_OFFSETS_TO_TXN, 2, FENCED),
        (ApiKey.END_TXN, 1, INVALID_EPOCH),
        (ApiKey.END_TXN, 2, FENCED),
    ],
)
def test_a_fenced_producer_is_told_in_a_way_that_its_version_knows(
    wire: Wire, topic: str, key: ApiKey, asked: int, code: int
) -> None:
    """KIP-588."""
    old = TransactionalProducer(wire, topic, 0)
    for _ in range(2):
        TransactionalProducer(wire, topic, 0)
    more: dict[ApiKey, dict[str, Any]] = {
        ApiKey.INIT_PRODUCER_ID: {"transaction_timeout": 1000},
        ApiKey.ADD_OFFSETS_TO_TXN: {"group_id": topic},
        ApiKey.END_TXN: {"committed": True},
    }
    if key is ApiKey.ADD_PARTITIONS_TO_TXN:
        answer = wire.ask(
            key,
            asked,
            **{f"v3_and_below_{name}": value for name, value in old.named.items()},
            v3_and_below_topics=[{"name": topic, "partitions": [0]}],
        )
        found = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
    else:
        found = wire.ask(key, asked, **old.named, **more[key]).error_code
    assert found == code


def test_initialization_aborts_what_the_former_producer_left_open(wire: Wire, topic: str, version: int) -> None:
    old = TransactionalProducer(wire, topic, version)
    assert old.send(topic, b"old") == 0
    new = TransactionalProducer(wire, topic, version)
    assert new.send(topic, b"new") == 0
    assert new.end().error_code == 0
    assert old.produce(topic, b"zombie") in (INVALID_EPOCH, FENCED)
    while stable_end(wire, topic) < fetch(wire, topic).high_watermark:
        pass
    assert [one.first_offset for one in fetch(wire, topic).aborted_transactions] == [0]


def test_unadded_partition_is_refused(wire: Wire, topic: str) -> None:
    """Verification (KIP-890): a client of version 0 has to add its partitions itself."""
    producer = TransactionalProducer(wire, topic, 0)
    assert producer.produce(topic, b"x") == ABORTABLE
    assert producer.add(topic, 0) == 0
    assert producer.produce(topic, b"x", partition=1) == ABORTABLE
    assert producer.produce(topic, b"x") == 0


def test_a_later_batch_does_not_overtake_one_that_was_refused(wire: Wire, topic: str) -> None:
    """Of pipelined batches the first one, refused by the coordinator, comes again (KAFKA-15653)."""
    producer = TransactionalProducer(wire, topic, 0)
    assert producer.produce(topic, b"0") == ABORTABLE
    assert producer.add(topic, 0) == 0
    assert producer.produce(topic, b"1", base_sequence=1) == OUT_OF_ORDER
    assert producer.produce(topic, b"0") == 0
    assert producer.produce(topic, b"1") == 0
    assert producer.end().error_code == 0


def test_the_first_batch_of_an_unknown_producer_of_version_2_has_sequence_0(wire: Wire, topic: str) -> None:
    TransactionalProducer(wire, f"{topic}-other").send(topic, b"the log is not empty")
    producer = TransactionalProducer(wire, topic)
    assert producer.produce(topic, b"1", base_sequence=1) == OUT_OF_ORDER
    assert producer.produce(topic, b"0") == 0


@pytest.mark.parametrize(("asked", "code"), [(10, INVALID_STATE), (11, ABORTABLE)])
def test_an_old_producer_is_refused_in_a_way_that_its_version_knows(
    wire: Wire, topic: str, asked: int, code: int
) -> None:
    """KIP-890: TRANSACTION_ABORTABLE came with Produce 11."""
    assert TransactionalProducer(wire, topic, 0).produce(topic, b"x", produce_version=asked) == code


def test_unverified_batches_are_appended_where_verification_is_off(start: Callable[..., RunningNode]) -> None:
    running = start({"transaction.partition.verification.enable": "false"})
    with Wire(running.bootstrap) as wire:
        wire.create_topic("t")
        producer = TransactionalProducer(wire, "careless", 0)
        assert producer.produce("t", b"x") == 0
        assert stable_end(wire, "t") == 0


def test_batches_of_two_transactional_producers_in_one_request_are_refused(wire: Wire, topic: str) -> None:
    """As Kafka's ``ReplicaManager.handleProduceAppend``."""
    batches = [
        encode_batch([NewRecord(b"x")], transactional=True, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        for producer_id in (1, 2)
    ]
    answer = wire.ask(
        ApiKey.PRODUCE,
        11,
        transactional_id="two",
        acks=-1,
        timeout=30_000,
        topic_data=[
            {
                "name": topic,
                "partition_data": [{"index": at, "records": bytes(batch)} for at, batch in enumerate(batches)],
            }
        ],
    )
    codes = [one.error_code for one in answer.responses[0].partition_responses]
    assert codes == [NO_SUCH_PRODUCER, NO_SUCH_PRODUCER]


def test_late_write_after_the_abort_opens_no_transaction(wire: Wire, topic: str, version: int) -> None:
    """KAFKA-14402: such a batch would hold back consumers forever."""
    producer = TransactionalProducer(wire, topic, version)
    assert producer.send(topic, b"a") == 0
    late = {"producer_epoch": producer.epoch, "base_sequence": 1}
    assert producer.end(commit=False).error_code == 0
    while stable_end(wire, topic) < 2:
        pass
    while (code := producer.produce(topic, b"late", **late)) == NOT_ENOUGH_REPLICAS:
        pass  # the coordinator has not written yet that the transaction is complete
    assert code in (INVALID_STATE, INVALID_EPOCH, ABORTABLE)
    assert stable_end(wire, topic) == fetch(wire, topic).high_watermark


def test_an_unknown_partition_adds_none(wire: Wire, topic: str) -> None:
    producer = TransactionalProducer(wire, topic, 0)
    answer = wire.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id=producer.id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0, 9]}],
    )
    codes = [one.partition_error_code for one in answer.results_by_topic_v3_and_below[0].results_by_partition]
    assert codes == [NOT_ATTEMPTED, UNKNOWN_TOPIC]
    assert wire.ask(ApiKey.END_TXN, 4, **producer.named, committed=True).error_code == INVALID_STATE


def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced() -> None:
    with Broker({"t": 1}) as running, Wire(running.bootstrap) as wire:
        producer = TransactionalProducer(wire, "slow")
        assert producer.send("t", b"a") == 0
        running.clock.advance(90)
        wait_until(lambda: stable_end(wire, "t") == 2, "the marker")
        assert fetch(wire, "t").aborted_transactions[0].first_offset == 0
        answer = producer.until_free(lambda: wire.ask(ApiKey.END_TXN, 5, **producer.named, committed=True))
        assert answer.error_code in (FENCED, INVALID_STATE)


def test_transactions_outlive_a_restart(start: Callable[..., RunningNode]) -> None:
    running = start()
    with Wire(running.bootstrap) as wire:
        wire.ask(
            ApiKey.CREATE_TOPICS, topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}], timeout=30_000
        )
        producer = TransactionalProducer(wire, "moves")
        assert producer.send("t", b"before") == 0
    running.stop()
    running.start()
    with Wire(running.bootstrap) as wire:
        producer.wire = wire
        wire.ask(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=["moves"])
        assert producer.send("t", b"after") == 0
        assert producer.end().error_code == 0
    assert read_committed(running.bootstrap, "t", 2) == [b"before", b"after"]


def test_offsets_of_a_transaction_are_pending_until_its_marker(
    wire: Wire, topic: str, group: str, version: int
) -> None:
    wire.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=[group])
    producer = TransactionalProducer(wire, group, version)
    if version < 2:
        assert wire.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, **producer.named, group_id=group).error_code == 0
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    commit = wire.ask(
        ApiKey.TXN_OFFSET_COMMIT,
        5 if version >= 2 else 3,
        **producer.named,
        group_id=group,
        generation_id=-1,
        member_id="",
        topics=[{"name": topic, "partitions": [partition]}],
    )
    assert commit.topics[0].partitions[0].error_code == 0

    def committed(*, stable: bool) -> tuple[int, int]:
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        answer = wire.ask(ApiKey.OFFSET_FETCH, 9, groups=[asked], require_stable=stable)
        found = answer.groups[0].topics[0].partitions[0]
        return found.committed_offset, found.error_code

    assert committed(stable=False) == (-1, 0)
    assert committed(stable=True) == (-1, UNSTABLE)
    assert producer.end().error_code == 0
    while committed(stable=True)[1] == UNSTABLE:
        pass
    assert committed(stable=True) == (7, 0)


def test_offsets_of_a_transaction_by_topic_id(wire: Wire, topic: str, group: str) -> None:
    """Version 6 of TxnOffsetCommit (KIP-1319); the codes are those of Kafka 4.4."""
    wire.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=[group])
    producer = TransactionalProducer(wire, group, 2)
    topic_id = wire.ask(ApiKey.METADATA, topics=[{"name": topic}]).topics[0].topic_id

    def commit(topic_id: UUID | None, partition: int = 0, **more: object) -> list[int]:
        place = {"partition_index": partition, "committed_offset": 7, "committed_metadata": ""}
        answer = wire.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            6,
            **producer.named,
            **{"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", **more},
            topics=[{"topic_id": topic_id, "partitions": [place]}],
        )
        assert answer.topics[0].topic_id == topic_id
        return [one.error_code for one in answer.topics[0].partitions]

    assert commit(topic_id) == [0]
    assert commit(topic_id, 99) == [3]
    assert commit(UUID(int=77)) == commit(None) == [100]
    assert commit(topic_id, group_id=f"no-{group}", generation_id_or_member_epoch=4) == [69]
    assert commit(topic_id, member_id="x", generation_id_or_member_epoch=4) == [25]
    assert producer.end().error_code == 0


# Administrators


def test_transactions_are_listed_and_described(wire: Wire, topic: str, version: int) -> None:
    producer = TransactionalProducer(wire, topic, version)
    assert producer.send(topic, b"a") == 0
    listed = wire.ask(ApiKey.LIST_TRANSACTIONS, state_filters=["Ongoing", "Foo"], producer_id_filters=[])
    assert listed.unknown_state_filters == ("Foo",)
    assert topic in [one.transactional_id for one in listed.transaction_states]
    here, gone = wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[topic, "nobody"]).transaction_states
    assert (here.transaction_state, here.producer_id, here.error_code) == ("Ongoing", producer.producer_id, 0)
    assert [(one.topic, one.partitions) for one in here.topics] == [(topic, (0,))]
    assert gone.error_code == NO_ID
    producer.end()


def test_an_id_without_a_transaction_is_older_than_any_duration(wire: Wire, topic: str) -> None:
    """Kafka counts its age from a start of -1."""
    idle = f"{topic}-idle"
    TransactionalProducer(wire, idle)
    producer = TransactionalProducer(wire, topic)
    assert producer.send(topic, b"a") == 0
    listed = wire.ask(ApiKey.LIST_TRANSACTIONS, state_filters=[], producer_id_filters=[], duration_filter=3_600_000)
    ids = [one.transactional_id for one in listed.transaction_states]
    assert idle in ids
    assert topic not in ids
    producer.end()


def test_a_transaction_ends_where_its_topic_was_deleted(wire: Wire, topic: str, version: int) -> None:
    gone = wire.create_topic(f"{topic}-gone")
    producer = TransactionalProducer(wire, topic, version)
    assert producer.send(topic, b"stays") == 0
    assert producer.send(gone, b"goes") == 0
    assert wire.ask(ApiKey.DELETE_TOPICS, topics=[{"name": gone}], timeout=30_000).responses[0].error_code == 0
    assert producer.end().error_code == 0
    while stable_end(wire, topic) < 2:
        pass
    (found,) = wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[topic]).transaction_states
    while found.transaction_state == "PrepareCommit":
        (found,) = wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[topic]).transaction_states
    assert found.transaction_state == "CompleteCommit"


@versions(ApiKey.INIT_PRODUCER_ID)
def test_a_transactional_id_needs_a_name_and_a_timeout(wire: Wire, version: int) -> None:
    def code(transactional_id: str, timeout: int) -> int:
        answer = wire.ask(
            ApiKey.INIT_PRODUCER_ID, version, transactional_id=transactional_id, transaction_timeout=timeout
        )
        return int(answer.error_code)

    wire.ask(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=["x"])
    assert code("", 1000) == 42
    assert code("x", 0) == code("x", 900_001) == 50


# Clients


def test_librdkafka_reads_processes_and_writes(broker: RunningNode, topic: str, group: str) -> None:
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(SECONDS)
    for round_ in range(4):
        producer.begin_transaction()
        for number in range(25):
            producer.produce(topic, b"%d-%d" % (round_, number), partition=0)
        offsets = [TopicPartition(topic, 1, round_)]
        consumer: Any = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS)
        if round_ % 2:
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)
        consumer.close()
    values = read_committed(broker.bootstrap, topic, 50)
    assert values == [b"%d-%d" % (round_, number) for round_ in (0, 2) for number in range(25)]
    with Wire(broker.bootstrap) as wire:
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [1]}]}
        found = wire.ask(ApiKey.OFFSET_FETCH, 9, groups=[asked], require_stable=True)
        assert found.groups[0].topics[0].partitions[0].committed_offset == 2


def test_librdkafkas_fenced_producer_fails_for_good(broker: RunningNode, topic: str) -> None:
    settings = {"log_level": 0, "bootstrap.servers": broker.bootstrap, "transactional.id": topic}
    old, new = Producer(settings), Producer(settings)
    old.init_transactions(SECONDS)
    new.init_transactions(SECONDS)
    old.begin_transaction()
    old.produce(topic, b"zombie")
    with pytest.raises(KafkaException) as error:
        old.commit_transaction(SECONDS)
    assert error.value.args[0].fatal()


def test_kafka_pythons_producer_commits_and_aborts(broker: RunningNode, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
    producer.init_transactions()
    for commit in (True, False, True):
        producer.begin_transaction()
        producer.send(topic, b"%d" % commit, partition=0)
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer.close()
    assert read_committed(broker.bootstrap, topic, 2) == [b"1", b"1"]


def test_aiokafkas_producer_commits_and_aborts(broker: RunningNode, topic: str) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
        await producer.start()
        try:
            for commit in (True, False, True):
                await producer.begin_transaction()
                await producer.send(topic, b"%d" % commit, partition=0)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(produce(), SECONDS))
    assert read_committed(broker.bootstrap, topic, 2) == [b"1", b"1"]


def test_kafka_pythons_fenced_producer_fails(broker: RunningNode, topic: str) -> None:
    """It left its transaction open, as after a crash: the next producer of its id aborts that."""
    old, new = (kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic) for _ in range(2))
    old.init_transactions()
    old.begin_transaction()
    old.send(topic, b"zombie", partition=0).get(SECONDS)
    new.init_transactions()
    with pytest.raises(kafka.errors.KafkaError):
        old.commit_transaction()
    new.begin_transaction()
    new.send(topic, b"new", partition=0)
    new.commit_transaction()
    for producer in (old, new):
        producer.close()
    assert read_committed(broker.bootstrap, topic, 1) == [b"new"]


def test_aiokafkas_fenced_producer_fails(broker: RunningNode, topic: str) -> None:
    async def produce() -> None:
        old, new = (
            aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic) for _ in range(2)
        )
        await old.start()
        await old.begin_transaction()
        await old.send_and_wait(topic, b"zombie", partition=0)
        await new.start()
        with pytest.raises(aiokafka.errors.ProducerFenced):
            await old.commit_transaction()
        await new.begin_transaction()
        await new.send(topic, b"new", partition=0)
        await new.commit_transaction()
        for producer in (old, new):
            await producer.stop()

    asyncio.run(asyncio.wait_for(produce(), SECONDS))
    assert read_committed(broker.bootstrap, topic, 1) == [b"new"]
