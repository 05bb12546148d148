"""Jobs into a directory that a broker has open: taken over or sent, once, and whole for read_committed readers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import seglog
from seglog.client.kept_connections import close_all
from seglog.core.errors import AdoptError, InvalidConfigError, InvalidRecordError, LogDirInUseError, RequestFailedError
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.spark.write.brokers.batch_mark import BatchMarkError
from seglog.spark.write.directories.broker_client import running_brokers
from seglog.spark.write.directories.commit_client import CommitClient, CommitResult
from seglog.spark.write.directories.commit_coordinator import JobRequest
from seglog.storage.adopt import adopt
from seglog.storage.offline.findings import Severity
from seglog.storage.offline.verify import verify
from seglog.testing import Broker
from tests.broker.broker_thread import RunningNode
from tests.client.produce.written import numbers
from tests.spark.write.directories.broker_runs import CONFIG, DirectoryRun

HERE = TopicPartition("t", 0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path / "log") as running:
        yield running
        close_all()


def written(node: RunningNode, partition: int = 0) -> list[int]:
    return numbers(node.bootstrap, TopicPartition("t", partition))


def segments(node: RunningNode) -> list[str]:
    return sorted(path.name for path in (node.path / "t-0").glob("*.log"))


def staged(path: Path) -> list[Path]:
    return list(path.glob("t-*/.seglog/staging/*"))


def test_large_segments_are_taken_over_and_small_ones_sent_in_the_order_of_tasks(node: RunningNode) -> None:
    run = DirectoryRun(node.path, "q")
    small = DirectoryRun(node.path, "q", key=10)
    job = f"{uuid.uuid4().hex}-{os.getpid()}"
    assert run.begin().partitions == 2
    parts = [
        *small.task(job, 0, [0, 2]),
        *run.task(job, 1, [*range(4, 24, 2), 1, 3]),
        *small.task(job, 2, [24]),
        *run.task(job, 3, [*range(26, 46, 2)]),
        *small.task(job, 4, [46, 5]),
    ]
    before = len(segments(node))
    assert run.client().commit(job, "query:q", 0, parts) == CommitResult(27, already=False)
    assert written(node) == [*range(0, 48, 2)]
    assert written(node, 1) == [1, 3, 5]
    assert len(segments(node)) >= before + 2
    assert staged(node.path) == []
    node.stop()
    assert [one for one in verify([str(node.path)]).findings if one.severity is Severity.DAMAGE] == []
    node.start()
    assert written(node) == [*range(0, 48, 2)]


def test_a_batch_is_written_once(node: RunningNode) -> None:
    run = DirectoryRun(node.path, "q")
    assert run.batch(0, [range(0, 20, 2)]).records == 10
    assert run.batch(0, [range(100, 120, 2)]) == CommitResult(0, already=True)
    assert run.batch(1, [[20]]).records == 1
    assert written(node) == [*range(0, 22, 2)]
    with pytest.raises(BatchMarkError, match="batch 0 is over"):
        run.batch(0, [[1]])
    with pytest.raises(BatchMarkError, match="before batch 3 the mark must be of batch 2"):
        run.batch(3, [[1]])
    assert written(node) == [*range(0, 22, 2)]


def test_a_job_with_a_version_and_one_without(node: RunningNode) -> None:
    run = DirectoryRun(node.path, "unused")
    assert run.batch(7, [range(0, 20, 2)], application="txn:nightly").records == 10
    assert run.batch(7, [[2]], application="txn:nightly").already
    assert run.batch(0, [[20]], application="job:a").records == 1
    assert run.batch(0, [[]], application="job:b").records == 0
    assert written(node) == [*range(0, 22, 2)]


def test_a_version_is_remembered_when_its_offset_has_expired(node: RunningNode) -> None:
    run = DirectoryRun(node.path, "unused")
    for application in ("txn:a", "txn:b"):
        run.batch(7, [[0]], application=application)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for deleted in admin.delete_consumer_groups(["seglog-txn-a", "seglog-txn-b"]).values():
        deleted.result(30)  # as after offsets.retention.minutes
    for application in ("txn:a", "txn:b"):
        assert run.begin(application, 7) is not None
        assert run.batch(7, [[2]], application=application).already
    assert written(node) == [0, 0]
    assert run.batch(8, [[2]], application="txn:a").records == 1


def test_commit_with_a_damaged_segment_is_aborted(node: RunningNode) -> None:
    run = DirectoryRun(node.path, "q")
    run.batch(0, [[0]])
    job = f"{uuid.uuid4().hex}-{os.getpid()}"
    parts = [*run.task(job, 0, range(2, 22, 2)), *run.task(job, 1, range(22, 42, 2))]
    damaged = node.path / parts[1].directory / parts[1].segments[0].name
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(Exception, match="CRC"):
        run.client().commit(job, "query:q", 1, parts)
    assert written(node) == [0]
    run.client().abort(job)
    assert staged(node.path) == []
    assert run.batch(1, [[2]]).records == 1
    assert written(node) == [0, 2]


def test_other_producers_go_on(node: RunningNode) -> None:
    from tests.kit.topics import write

    run = DirectoryRun(node.path, "q")
    run.begin()
    assert write(node.bootstrap, "t", "1000") is None
    run.batch(0, [range(0, 20, 2)])
    assert write(node.bootstrap, "t", "1001") is None
    run.batch(1, [range(20, 40, 2)])
    assert written(node) == [1000, *range(0, 20, 2), 1001, *range(20, 40, 2)]


def test_a_query_keeps_its_place_when_the_broker_starts_and_ends(node: RunningNode) -> None:
    """The broker honors the ledger of the directory. Only the broker knows the batches that were written through it."""
    node.stop()
    run = DirectoryRun(node.path, "q")
    with seglog.open(node.path) as directory:
        directory.create_topic("t", 2, CONFIG)
        adopt(directory, "job", run.task("job", 0, [0]), "query:q", 0)
    node.start()
    assert run.batch(0, [[2]]).already
    assert run.batch(1, [[4]]).records == 1
    assert written(node) == [0, 4]
    node.stop()
    with seglog.open(node.path) as directory:
        parts = run.task("again", 0, [6])
        with pytest.raises(AdoptError, match="through its broker, which knows whether version 1 is there"):
            adopt(directory, "again", parts, "query:q", 1)
        adopt(directory, "again", parts, "query:other", 0)


def test_staging_of_a_dead_driver_is_removed(node: RunningNode) -> None:
    run = DirectoryRun(node.path, "q")
    run.begin()
    run.task(f"{uuid.uuid4().hex}-{2**22 + 1}", 0, [0])
    run.task(f"{uuid.uuid4().hex}-{os.getpid()}", 0, [0])
    assert len(staged(node.path)) == 2
    run.begin()
    (left,) = staged(node.path)
    assert left.name.endswith(f"-{os.getpid()}")


def test_options_are_compared_with_the_topic(node: RunningNode) -> None:
    run = DirectoryRun(node.path, "q")
    assert run.begin().config["segment.bytes"] == str(1 << 20)
    request = JobRequest("job", owner=os.getpid(), topic="t", create={"t": 3})
    with pytest.raises(InvalidConfigError, match="numPartitions is 3, but topic t exists with 2"):
        run.client().begin(request)
    with pytest.raises(InvalidConfigError, match=r"topic.retention.ms is 5"):
        run.client().begin(
            JobRequest("job", owner=os.getpid(), topic="t", create={"t": 2}, config={"retention.ms": "5"})
        )


def test_other_requests_say_that_a_broker_has_the_directory(node: RunningNode) -> None:
    with pytest.raises(LogDirInUseError, match="is open in a broker"):
        CommitClient(str(node.path), linger=0).begin(JobRequest("job", owner=os.getpid(), topic="t", create={"t": 1}))


def test_only_open_directories_have_a_listening_broker(node: RunningNode, tmp_path: Path) -> None:
    assert running_brokers([str(tmp_path)]) == []
    assert [one.directory for one in running_brokers([str(node.path), str(tmp_path)])] == [str(node.path)]
    node.stop()
    assert running_brokers([str(node.path)]) == []


def test_a_broker_that_has_ended_fails_the_commit(node: RunningNode) -> None:
    run = DirectoryRun(node.path, "q")
    run.begin()
    parts = run.task("job", 0, [0])
    client = run.client()
    node.stop()
    with pytest.raises(RequestFailedError, match="has ended"):
        client.commit("job", "query:q", 0, parts)
    assert OsFs().exists(str(node.path / parts[0].directory))


def test_a_segment_is_not_committed_before_its_last_batch_is() -> None:
    """Here the leader takes over the segment, and never acknowledges its last batch, as if no replica had it."""
    with Broker() as broker:
        run = DirectoryRun(Path(broker.data_dir), "q")
        run.batch(0, [range(0, 20, 2)])
        broker.fail("Produce", error="INVALID_RECORD", times=None)
        with pytest.raises(InvalidRecordError):
            run.batch(1, [range(20, 40, 2)])
        broker.faults.clear()
        assert numbers(broker.bootstrap, HERE) == [*range(0, 20, 2)]
        run.batch(1, [range(20, 40, 2)])
        assert numbers(broker.bootstrap, HERE) == [*range(0, 40, 2)]
    close_all()
