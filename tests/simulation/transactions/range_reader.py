"""A client that chooses ranges of offsets and then reads them with `read_committed`, as Spark's source does. It is the
shipped `RangeFetcher`, over a simulated network.

It blocks the thread that runs the world. So it is no process of the world: `RangeReader.read_until` lets the world go
on, and reads from time to time.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.leader_offsets import EARLIEST, LATEST, OffsetQuestion, answer_offsets
from seglog.client.range_fetcher import FetchTarget, RangeFetcher
from seglog.core.errors import RequestFailedError
from seglog.core.types import TopicPartition
from seglog.records.batch import entries, last_offset_of
from tests.cluster_run.history import History, Read
from tests.kit.virtual_broker import PORT
from tests.kit.virtual_loop import VirtualLoop
from tests.simulation.cluster.contents import TOPIC
from tests.simulation.cluster.run import run_until
from tests.simulation.transactions.clients import committed_records
from tests.simulation.transactions.producer import key_of
from tests.simulation.virtual_socket import WorldClock, dial

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster

_PATIENCE: Final = (2.0, 8.0)
_PAUSES: Final = (0.1, 0.3, 1.0)


class ReadRange(NamedTuple):
    """A range of a partition that was read to its end, and its committed records, by offset."""

    number: int
    start: int
    end: int
    records: dict[int, str]


class RangeReader:
    """``done``: what it has read. ``counted``: how its reads ended."""

    def __init__(self, cluster: Cluster) -> None:
        self.done: list[ReadRange] = []
        self.counted: Counter[str] = Counter()
        self.loop = VirtualLoop(cluster.world, "ranges")
        self._cluster = cluster
        self._rng = Random(f"{cluster.seed} ranges")
        bootstrap = ",".join(f"{host.host}:{PORT}" for host in cluster.hosts.values())
        properties = {
            "bootstrap.servers": bootstrap,
            "request.timeout.ms": "1500",
            "socket.connection.setup.timeout.ms": "500",
            "retry.backoff.ms": "50",
            "fetch.max.wait.ms": "50",
        }
        self._config = ClientConfig.from_mapping(properties, use="read")

    def read_until(self, seconds: float) -> None:
        world = self._cluster.world
        while world.now < seconds:
            run_until(world, min(seconds, world.now + self._rng.choice(_PAUSES)))
            connections = ClusterConnections(
                self._config, clock=WorldClock(world), dial=dial(self._cluster.network, self.loop)
            )
            with connections as cluster:
                try:
                    self._read(cluster)
                except RequestFailedError as error:
                    self.counted["failed"] += 1
                    world.note("range failed", error)

    def _read(self, cluster: ClusterConnections) -> None:
        """Ranges up to the high watermark, or before it: transactions in them may be open still."""
        rng = self._rng
        wanted = [TopicPartition(TOPIC, number) for number in range(self._cluster.scenario.partitions)]
        questions = [OffsetQuestion(dict.fromkeys(wanted, when)) for when in (EARLIEST, LATEST)]
        first, latest = answer_offsets(cluster, questions, retries=1, retry_wait=0.2)
        topic_id = self._cluster.topic_id
        targets = []
        for partition in wanted:
            end = rng.choice((latest[partition], rng.randint(first[partition], latest[partition])))
            start = max(first[partition], end - rng.randrange(1, 30))
            targets.append(FetchTarget(partition, topic_id, start, end, 1_000))
        found: dict[TopicPartition, dict[int, str]] = {one.topic_partition: {} for one in targets}

        def lose(text: str) -> None:
            raise AssertionError(f"P1: a reader of ranges is told of a loss: {text}")

        fetcher = RangeFetcher(cluster, targets, read_committed=True, patience=rng.choice(_PATIENCE), lose=lose)
        for fetched in fetcher:
            answer = SimpleNamespace(records=fetched.records, aborted_transactions=fetched.aborted)
            end = fetched.target.end
            upto = fetched.position
            for offset, value in committed_records(answer, fetched.position):
                if value is not None and offset < end:
                    found[fetched.target.topic_partition][offset] = value.decode()
            for entry in entries(fetched.records):
                upto = last_offset_of(fetched.records, entry) + 1
            fetcher.advance(fetched, upto)
        for one in targets:
            self.counted["read"] += 1
            partition = one.topic_partition
            self.done.append(ReadRange(partition.partition, one.start, one.end, found[partition]))

    def check(self, history: History) -> None:
        """P24: a range that was read to its end has all committed records of these offsets, and no other."""
        final: dict[str, dict[int, str]] = {}
        for op in history.ops:
            if op.is_final:
                for read in op.steps:
                    assert isinstance(read, Read)
                    final.setdefault(read.key, {})[read.offset] = read.value
        for one in self.done:
            there = final.get(key_of(one.number), {})
            expected = {offset: value for offset, value in there.items() if one.start <= offset < one.end}
            assert one.records == expected, (
                f"range {one.start} to {one.end} of {one.number}: {one.records} was read, {expected} is committed"
            )
