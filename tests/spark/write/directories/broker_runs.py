"""Jobs into a directory that a broker has open, without Spark: what tasks stage, and the driver's commit."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from seglog.client.cluster_connections import ClusterConnections
from seglog.core.clock import SystemClock
from seglog.core.config import LogConfig
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.spark.write.directories import directory_owner
from seglog.spark.write.directories.broker_client import BrokerCommitClient, running_brokers
from seglog.spark.write.directories.commit_client import CommitResult, TopicTarget
from seglog.spark.write.directories.commit_coordinator import JobRequest
from seglog.spark.write.write_options import parse_write_options
from seglog.storage.adopt import StagedPart, StagingWriter, staged_at
from seglog.storage.directory.owner_socket import exchange
from tests.client.produce.written import config
from tests.spark.write.brokers.sink_runs import steps_now

CONFIG: Final[Mapping[str, str]] = {"segment.bytes": str(1 << 20), "retention.ms": "-1"}
"""Segments from 64 KiB on are taken over."""
LARGE: Final = 20_000
"""Bytes of a key with which four records are a large segment."""
PER_BATCH: Final = 2


class DirectoryRun:
    """A run of query ``query`` of one driver; tasks write numbers to partition ``number % 2``."""

    def __init__(self, path: Path, query: str, *more: Path, key: int = LARGE, **options: str) -> None:
        """``path`` and ``more`` are log directories of one cluster."""
        self.paths = [path, *more]
        self._homes: Mapping[TopicPartition, str] = {}
        self.query = query
        self._key = bytes(key)
        self._options = parse_write_options({"path": str(path), "topic": "t", **options})
        self.topic = self._options.topic or ""

    def client(self) -> BrokerCommitClient:
        brokers = running_brokers([str(path) for path in self.paths])
        assert brokers
        return BrokerCommitClient(brokers, self._options)

    def leader(self, partition: int) -> int:
        """The broker that leads a partition now."""
        bootstrap = ",".join(owner.bootstrap for owner in running_brokers([str(path) for path in self.paths]))
        with ClusterConnections(config(bootstrap)) as cluster:
            found = cluster.metadata([self.topic]).leader(TopicPartition(self.topic, partition))
        return -1 if found is None else found.leader

    def segments(self, partition: int) -> int:
        """The most that one of the directories has."""
        return max(len(list((path / f"{self.topic}-{partition}").glob("*.log"))) for path in self.paths)

    def begin(self, application: str | None = None, version: int = 0) -> TopicTarget:
        request = JobRequest(
            uuid.uuid4().hex,
            owner=os.getppid(),
            topic=self.topic,
            create={self.topic: 2},
            config=CONFIG,
            application=application,
            version=version,
            stream="s",
        )
        start = self.client().begin(request)
        self._homes = start.homes
        return start.topics[self.topic]

    def task(self, job: str, number: int, values: Sequence[int]) -> list[StagedPart]:
        parts = []
        for partition in sorted({value % 2 for value in values}):
            place = TopicPartition(self.topic, partition)
            directory = staged_at(place, job, f"{number}")
            home = self._homes.get(place, str(self.paths[0]))
            writer = StagingWriter(OsFs(), SystemClock(), os.path.join(home, directory), LogConfig.from_mapping(CONFIG))
            mine = [value for value in values if value % 2 == partition]
            for at in range(0, len(mine), PER_BATCH):
                batch = mine[at : at + PER_BATCH]
                writer.append(encode_batch([NewRecord(b"%d" % value, key=self._key) for value in batch]))
            parts.append(StagedPart.of(place, directory, writer.finish()))
        return parts

    def batch(self, number: int, tasks: Sequence[Sequence[int]], *, application: str | None = None) -> CommitResult:
        """All of a micro-batch. As Spark does, it is aborted if it fails."""
        job = f"{uuid.uuid4().hex}-{os.getppid()}"
        try:
            self.begin(application, number)
            parts = [part for task, values in enumerate(tasks) for part in self.task(job, task, values)]
            return self.client().commit(job, application or f"query:{self.query}", number, parts)
        except Exception:
            self.client().abort(job)
            raise


@contextmanager
def counted_exchanges() -> Iterator[None]:
    """Requests to the owner of a directory are steps, as those to a broker (`sink_runs.threads_as_processes`)."""

    def counted(address: str, request: bytes) -> bytes | None:
        now = steps_now()
        if now is not None:
            now.before_send()
        answer = exchange(address, request)
        if now is not None:
            now.before_receive()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{directory_owner.__name__}.exchange", counted)
        yield
