"""Producer ids: in blocks, none twice, whatever happens; and who produces to a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer

from seglog.broker.apis.producers import BLOCK, ProducerIds
from seglog.cluster.sqlite_store import SqliteStore
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.kit.broker_process import BrokerProcess


def take(wire: Wire) -> int:
    answer = wire.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout=1000)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return int(answer.producer_id)


def test_no_id_is_given_twice_nor_after_a_restart(start: Callable[..., RunningNode]) -> None:
    running = start()
    with Wire(running.bootstrap) as wire:
        first = [take(wire) for _ in range(BLOCK + 50)]
    running.stop()
    running.start()
    with Wire(running.bootstrap) as wire:
        again = [take(wire) for _ in range(10)]
    assert len({*first, *again}) == BLOCK + 60
    assert min(again) > max(first)


def test_brokers_that_share_a_store_share_no_id(tmp_path: Path) -> None:
    async def run() -> None:
        stores = [await SqliteStore.open(tmp_path / "store") for _ in range(4)]
        ids = [ProducerIds(store) for store in stores]
        given = await asyncio.gather(*(one.next() for one in ids for _ in range(700)))
        assert len(set(given)) == 2800
        for one, store in zip(ids, stores, strict=True):
            await one.close()
            await store.close()

    asyncio.run(run())


def test_ids_are_not_reused_after_a_kill(tmp_path: Path) -> None:
    seen: set[int] = set()
    for _ in range(3):
        with BrokerProcess(tmp_path / "log") as killed, Wire(killed.bootstrap) as wire:
            given = {take(wire) for _ in range(5)}
        assert not given & seen
        seen |= given


def test_active_producers_are_described(broker: RunningNode, wire: Wire, topic_name: str) -> None:
    producer = Producer({"log_level": 0, "bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    wire.create_topic(topic_name)
    for _ in range(3):
        producer.produce(topic_name, b"v")
        assert producer.flush(60) == 0
    asked = [{"name": topic_name, "partition_indexes": [0, 9]}]
    here, there = wire.ask(ApiKey.DESCRIBE_PRODUCERS, topics=asked).topics[0].partitions
    (state,) = here.active_producers
    assert (state.producer_epoch, state.last_sequence, state.current_txn_start_offset) == (0, 2, -1)
    assert (there.error_code, there.active_producers) == (3, ())
