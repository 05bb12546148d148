"""Requests at the socket of a directory: which segments a leader takes over, and who hears of them."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.produce.transaction import Transaction
from seglog.core.clock import SystemClock
from seglog.core.config import LogConfig
from seglog.core.error_codes import ErrorCode
from seglog.core.fs import OsFs
from seglog.core.types import ProducerIdAndEpoch, TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.adopt import StagingWriter, staged_at
from seglog.storage.adopt.segment_request import SegmentRequest
from seglog.storage.directory.owner_socket import exchange, socket_path
from seglog.storage.log.finished_segment import stamp
from tests.broker.broker_thread import RunningNode, Wire
from tests.client.produce.written import config, numbers

PLACE: Final = TopicPartition("t", 0)
RECORDS: Final = 6


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path / "log") as running:
        with Wire(running.bootstrap) as wire:
            wire.create_topic("t")
        yield running


@pytest.fixture
def transaction(node: RunningNode) -> Iterator[Transaction]:
    with ClusterConnections(config(node.bootstrap)) as cluster:
        begun = Transaction(cluster, "q")
        begun.begin()
        yield begun


def staged(node: RunningNode, transaction: Transaction, **changes: Any) -> SegmentRequest:
    """A segment in staging, and the request for it."""
    directory = staged_at(PLACE, "job", "0")
    writer = StagingWriter(OsFs(), SystemClock(), str(node.path / directory), LogConfig())
    for number in range(0, RECORDS, 2):
        writer.append(encode_batch([NewRecord(b"%d" % value) for value in (number, number + 1)]))
    (segment,) = writer.finish()
    file = os.path.join(directory, segment.name)
    producer = transaction.handle.producer
    following = stamp(OsFs(), str(node.path / file), producer, 0)
    request = SegmentRequest(
        topic=PLACE.topic,
        partition=PLACE.partition,
        file=file,
        records=RECORDS,
        keyed=True,
        transactional_id="q",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=following - 1,
        implicit=True,
    )
    return request._replace(**changes)


def ask(node: RunningNode, do: str, fields: Mapping[str, object]) -> Any:
    line = exchange(str(node.path), json.dumps({"do": do, **fields}).encode() + b"\n")
    return json.loads(line or b"null")


def test_a_segment_is_taken_over_once(node: RunningNode, transaction: Transaction) -> None:
    request = staged(node, transaction)
    assert ask(node, "adopt", request._asdict()) == {"ok": {}}
    assert not (node.path / request.file).exists()
    assert ask(node, "adopt", request._asdict()) == {"ok": {}}
    assert numbers(node.bootstrap, PLACE) == []
    transaction.commit()
    assert numbers(node.bootstrap, PLACE) == [*range(RECORDS)]


def test_readers_that_wait_are_woken(node: RunningNode, transaction: Transaction) -> None:
    """The socket of `Wire` gives up before the wait of the request is over."""
    request = staged(node, transaction)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": "t", "partitions": [partition]}]
    with Wire(node.bootstrap) as wire:
        wire.send(ApiKey.FETCH, 11, replica_id=-1, max_wait=120_000, min_bytes=1, max_bytes=1 << 20, topics=topics)
        assert ask(node, "adopt", request._asdict()) == {"ok": {}}
        ((answered,),) = (topic.partitions for topic in wire.answer(ApiKey.FETCH, 11).responses)
        assert answered.high_watermark == RECORDS
        assert answered.last_stable_offset == 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"file": "t-0/00000000000000000000.log"}, "AdoptError: a segment for t-0 is not in"),
        ({"file": "t-0/.seglog/staging/job/../00000000000000000000.log"}, "AdoptError: a segment for t-0 is not in"),
        ({"file": "t-0/.seglog/staging/job/1/00000000000000000000.log"}, "AdoptError: .* does not exist"),
        ({"topic": "__consumer_offsets"}, "AdoptError: "),
        ({"topic": "u", "file": "u-0/.seglog/staging/job/0/00000000000000000000.log"}, "NotLeaderError: "),
        ({"records": 7}, "AdoptError: .* unlike "),
        ({"last_sequence": 6}, "AdoptError: .* unlike "),
        ({"producer_epoch": 1}, "AdoptError: .* unlike "),
        ({"partition": "0"}, "AdoptError: not a request for a segment"),
    ],
)
def test_refusals(node: RunningNode, transaction: Transaction, changes: Mapping[str, Any], error: str) -> None:
    request = staged(node, transaction)
    answer = ": ".join(ask(node, "adopt", request._replace(**changes)._asdict())["error"])
    assert re.match(error, answer), answer
    assert (node.path / request.file).exists()
    assert node.node.directories.dirs[0].log("t").log_end_offset == 0


def test_a_compacted_topic_needs_keys(node: RunningNode, transaction: Transaction) -> None:
    request = staged(node, transaction, keyed=False)
    node.on_loop(lambda: compacted(node))
    assert ask(node, "adopt", request._asdict())["code"] == ErrorCode.INVALID_RECORD


async def compacted(node: RunningNode) -> None:
    log = node.node.directories.dirs[0].log("t")
    log.reconfigure(log.config.with_overrides({"cleanup.policy": "compact"}))


def test_a_producer_without_a_transaction_is_refused(node: RunningNode, transaction: Transaction) -> None:
    """Its segment would open a transaction that is never ended."""
    request = staged(node, transaction)
    transaction.begin()  # another process has the transactional id now
    answer = ask(node, "adopt", request._asdict())
    assert answer["code"] in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    unknown = ProducerIdAndEpoch(4242, 0)
    stamp(OsFs(), str(node.path / request.file), unknown, 0)
    answer = ask(node, "adopt", request._replace(producer_id=4242, producer_epoch=0)._asdict())
    assert answer["code"] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert node.node.directories.dirs[0].log("t").log_end_offset == 0


def test_a_client_with_another_temporary_directory_is_answered(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert ask(node, "status", {})["ok"]["broker"]["node_id"] == node.node.identity.node_id


def test_a_stop_removes_the_socket(node: RunningNode) -> None:
    path = Path(socket_path(str(node.path)))
    assert path.exists()
    assert path.parent.stat().st_mode & 0o077 == 0
    node.stop()
    assert not path.exists()
