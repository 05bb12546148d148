"""No producer gets an id that a directory knows, also when its metadata store knows none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from seglog.broker.apis.producers import BLOCK
from seglog.broker.known_producers import first_free_block
from seglog.protocol.apis import ApiKey
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import STORE
from tests import golden
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.transactional_producer import TransactionalProducer


def new_producer_id(wire: Wire) -> int:
    answer = wire.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout=1000)
    assert answer.error_code == 0
    return int(answer.producer_id)


def test_a_new_directory_begins_with_0(start: Callable[..., RunningNode]) -> None:
    with Wire(start().bootstrap) as wire:
        assert new_producer_id(wire) == 0


def test_a_directory_of_kafka_goes_on_after_the_last_block_of_its_ids(tmp_path: Path) -> None:
    log_dir = golden.log_dir(golden.unpack(tmp_path, "4.4.0"))
    with LogDir.open(log_dir) as opened:
        known = {one for log in opened.logs.values() for one in log.producers.entries}
        assert first_free_block(opened) == BLOCK * (max(known) // BLOCK + 1)
    with RunningNode(log_dir) as running, Wire(running.bootstrap) as wire:
        assert new_producer_id(wire) >= BLOCK


def test_the_ids_of_transactional_producers_without_records_count(start: Callable[..., RunningNode]) -> None:
    running = start()
    with Wire(running.bootstrap) as wire:
        silent = TransactionalProducer(wire, "silent")
    running.stop()
    (running.path / STORE).unlink()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert new_producer_id(wire) > silent.producer_id
