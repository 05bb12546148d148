"""A broker's metrics, by the names that Kafka dashboards use (the common rules of the JMX exporter, and
kafka_exporter's names for groups), and its health pages.

Requests are timed only if there is a listener for metrics. Partitions always count their bytes and records, by plain
additions. Everything else is read when a page is requested.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from struct import Struct
from typing import Final
from uuid import UUID

from seglog.broker.health import StoreStatus, count_partitions, obstacles
from seglog.broker.identity import Identity
from seglog.broker.request_errors import RequestErrors
from seglog.broker.topics.topics import Topic, Topics
from seglog.coordinators.classic.state import GroupState
from seglog.coordinators.consumer.group import ConsumerGroupState
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import CoordinatorShard
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.core.error_codes import error_name
from seglog.core.fs import Fs, OsFs
from seglog.core.metrics import CONTENT_TYPE, QUANTILES, Durations, Family, Labels, Sample, lines
from seglog.net.connection import ClientConnection, FrameHandler, Reply
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.http import Page, Pages
from seglog.net.pending_replies import PendingReply
from seglog.protocol.apis import APIS, ApiKey
from seglog.replication.replica import Replica

_KEY: Final = Struct(">h")
_TURN: Final = 50
"""Lines between two turns for clients: about a fifth of a millisecond."""
_RUNNING: Final = 3
"""``BrokerState.RUNNING``."""
_SERVER: Final = "kafka_server_"
_GROUPS: Final = "kafka_coordinator_group_groupmetadatamanager_"
_CONTROLLER: Final = "kafka_controller_kafkacontroller_"
_REPLICAS: Final = "kafka_server_replicamanager_"
_COUNTED: Final = (
    ("messages_in", "messagesin", "Records appended."),
    ("bytes_in", "bytesin", "Bytes of batches appended."),
    ("bytes_out", "bytesout", "Bytes of batches given to consumers."),
    ("appends", "totalproducerequests", "Appends, each partition of a request by itself."),
)


class Metrics:
    """Reads the parts of a broker. `topics_deleted` keeps the totals of deleted topics, so that no counter falls."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: GroupCoordinator,
        identity: Identity,
        store_status: Callable[[], StoreStatus | None],
        task_failure: Callable[[], BaseException | None],
        now: Callable[[], float],
        started_ms: int,
    ) -> None:
        self.errors = RequestErrors()
        self._topics = topics
        self._groups = groups
        self._identity = identity
        self._store_status = store_status
        self._task_failure = task_failure
        self._now = now
        self._started_ms = started_ms
        self._durations = {int(key): Durations() for key in APIS}
        self._seen: dict[tuple[str, UUID], Topic] = {}
        self._gone = dict.fromkeys((name for name, _, _ in _COUNTED), 0)

    def measured(self, handler: FrameHandler) -> FrameHandler:
        """``handler``, with requests counted and timed until their response is there."""
        now, durations = self._now, self._durations

        async def later(answer: Awaitable[Reply], begun: float, durations_of: Durations) -> Reply:
            try:
                return await answer
            finally:
                durations_of.add(now() - begun)

        def handle(connection: ClientConnection, frame: memoryview, /) -> Reply | Awaitable[Reply]:
            begun = now()
            of = durations[_KEY.unpack_from(frame)[0]]
            reply = handler(connection, frame)
            if reply is None or isinstance(reply, bytes | list):
                of.add(now() - begun)
                return reply
            if isinstance(reply, PendingReply):
                reply.when_known(lambda: of.add(now() - begun))
                return reply
            return later(reply, begun, of)

        return handle

    def topics_deleted(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            self._seen.pop((topic.name, topic.topic_id), None)
            for name in self._gone:
                self._gone[name] += _total(topic, name)

    def pages(self, shared: ConnectionQuotas) -> Pages:
        """``/metrics``, ``/health`` and ``/ready``."""
        return {
            "/metrics": lambda: self._written(shared),
            "/health": self.health,
            "/ready": self.ready,
            "/": lambda: Page(b"seglog: /metrics /health /ready\n"),
        }

    async def _written(self, shared: ConnectionQuotas) -> Page:
        """Written in small steps: thousands of partitions must not hold up clients."""
        written = []
        for line in lines(self.families(shared)):
            written.append(line)
            if not len(written) % _TURN:
                await asyncio.sleep(0)
        return Page("".join(written).encode(), CONTENT_TYPE)

    def health(self) -> Page:
        """Liveness. 503 if every log directory or a part of the broker has failed, and it must be restarted; else 200.
        The status is "limited", with the reasons, if the broker is not ready or a disk is full."""
        failure = self._failure()
        full = [one.path for one in self._topics.directories() if one.health.full is not None]
        limits = [*self._obstacles(), *(f"{path} is full and accepts no records" for path in full)]
        answer: dict[str, object] = {
            "status": "down" if failure is not None else "limited" if limits else "up",
            "node": self._identity.node_id,
            "cluster": self._identity.cluster_id,
            "directory": ",".join(one.path for one in self._topics.directories()),
        }
        if failure is not None:
            answer["failure"] = failure
        elif limits:
            answer["limits"] = limits
        return _json(answer, is_fine=failure is None)

    def ready(self) -> Page:
        """200 if clients should use this broker; else 503 with the reasons."""
        found = self._obstacles()
        return _json({"ready": not found, "node": self._identity.node_id, "obstacles": found}, is_fine=not found)

    def _failure(self) -> str | None:
        """The failure of the last log directory, or of a task without which the broker ends."""
        failed = self._task_failure()
        if failed is not None:
            return f"a part of this broker has failed, and it ends: {failed}"
        directories = self._topics.directories()
        failures = [one.health.failure for one in directories if one.health.failure is not None]
        return f"no log directory can be used: {failures[0]}" if len(failures) == len(directories) else None

    def _obstacles(self) -> Sequence[str]:
        counts = count_partitions(self._topics, self._identity.node_id)
        return obstacles(self._store_status(), counts, self._failure())

    def families(self, shared: ConnectionQuotas) -> Iterator[Family]:
        yield from self._traffic()
        yield from self._requests()
        yield from self._of_partitions()
        yield from self._of_groups()
        yield from self._of_store()
        by_listener = Counter(connection.listener for connection in shared.connections)
        yield Family(
            "kafka_server_socket_server_metrics_connection_count",
            "gauge",
            "Connections of clients.",
            [Sample(by_listener[name], [("listener", name)]) for name in self._identity.advertised],
        )
        yield from process_families(OsFs(), self._started_ms)

    def _traffic(self) -> Iterator[Family]:
        """By topic, and without a label for all topics, including deleted ones."""
        self._seen.update({(topic.name, topic.topic_id): topic for topic in self._topics})
        for name, written, text in _COUNTED:
            of_topics = [(topic, _total(topic, name)) for topic in self._seen.values()]
            samples = [Sample(self._gone[name] + sum(count for _, count in of_topics))]
            samples += [Sample(count, [("topic", topic.name)]) for topic, count in of_topics if self._is_there(topic)]
            yield Family(f"kafka_server_brokertopicmetrics_{written}_total", "counter", text, samples)

    def _is_there(self, topic: Topic) -> bool:
        return self._topics.by_name.get(topic.name) is topic

    def _requests(self) -> Iterator[Family]:
        """Fetch counts also as FetchConsumer."""
        named = [(_camel_case(key.name), self._durations[key]) for key in ApiKey]
        named.append(("FetchConsumer", self._durations[ApiKey.FETCH]))
        counts = [Sample(of.count, [("request", name)]) for name, of in named if of.count]
        yield Family("kafka_network_requestmetrics_requests_total", "counter", "Requests answered.", counts)
        text = "Milliseconds from a whole request to its answer; quantiles of the last 1,024."
        yield Family("kafka_network_requestmetrics_totaltimems", "summary", text, _times(named))
        found = [(_camel_case(key.name), self.errors.counts[key]) for key in ApiKey]
        found.append(("FetchConsumer", self.errors.counts[ApiKey.FETCH]))
        errors = [
            Sample(count, [("request", name), ("error", error_name(code))])
            for name, counts in found
            for code, count in sorted(counts.items())
        ]
        text = "Errors in responses, one per partition; NONE is not counted."
        yield Family("kafka_network_requestmetrics_errors_total", "counter", text, errors)

    def _of_partitions(self) -> Iterator[Family]:
        found = list(_partitions(self._topics))
        directories = self._topics.directories()
        failed = sum(one.health.failure is not None for one in directories)
        full = sum(one.health.full is not None for one in directories)
        counts = count_partitions(self._topics, self._identity.node_id)
        kinds: tuple[tuple[str, str, Callable[[Replica], float]], ...] = (
            ("size", "Bytes of a partition's segments.", lambda one: one.log.size),
            ("logstartoffset", "First offset.", lambda one: one.log.log_start_offset),
            ("logendoffset", "Offset of the next record.", lambda one: one.log.log_end_offset),
            ("numlogsegments", "Segments.", lambda one: len(one.log.segments)),
        )
        for name, text, read in kinds:
            yield Family(f"kafka_log_log_{name}", "gauge", text, (Sample(read(one), labels) for labels, one in found))
        is_controller = int(self._identity.is_controller)
        gauges = (
            (f"{_REPLICAS}partitioncount", "Partitions of this broker.", counts.here),
            (f"{_REPLICAS}leadercount", "Partitions that it leads.", counts.led),
            (f"{_REPLICAS}underreplicatedpartitions", "Those with replicas out of sync.", counts.under_replicated),
            (f"{_REPLICAS}underminisrpartitioncount", "Partitions below min.insync.replicas.", counts.under_min_isr),
            (f"{_REPLICAS}offlinereplicacount", "Partitions that cannot be read.", counts.offline),
            (f"{_CONTROLLER}activecontrollercount", "Whether this is the controller.", is_controller),
            (f"{_CONTROLLER}activebrokercount", "Brokers of the cluster.", len(self._identity.registered())),
            (f"{_CONTROLLER}globaltopiccount", "Topics.", len(self._topics.by_name)),
            (f"{_CONTROLLER}globalpartitioncount", "Partitions.", counts.everywhere),
            (f"{_CONTROLLER}offlinepartitionscount", "Partitions without a leader.", counts.leaderless),
            (
                "seglog_stray_partitions",
                "Replicas that the cluster does not name.",
                self._topics.strays[0],
            ),
            ("seglog_stray_bytes", "Their bytes.", self._topics.strays[1]),
            ("kafka_log_logmanager_offlinelogdirectorycount", "Log directories that have failed.", failed),
            ("seglog_fulllogdirectorycount", "Log directories whose disk is full.", full),
            (f"{_SERVER}kafkaserver_brokerstate", "3: running.", _RUNNING),
        )
        for name, text, value in gauges:
            yield Family(name, "gauge", text, [Sample(value)])

    def _of_store(self) -> Iterator[Family]:
        standing = self._store_status()
        if standing is None:
            return
        text = "Seconds since the metadata store confirmed this broker last; 0 while it does."
        yield Family("seglog_store_unconfirmed_seconds", "gauge", text, [Sample(standing.uncertain_seconds)])
        text = "Seconds without such a confirmation since the start."
        samples = [Sample(standing.uncertain_seconds_total)]
        yield Family("seglog_store_unconfirmed_seconds_total", "counter", text, samples)

    def _of_groups(self) -> Iterator[Family]:
        shards = self._shards()
        states = Counter(group.state.value for shard in shards for group in shard.groups.values())
        yield Family(f"{_GROUPS}numgroups", "gauge", "Groups.", [Sample(states.total())])
        for state in dict.fromkeys(state.value for state in (*GroupState, *ConsumerGroupState)):
            name = f"{_GROUPS}numgroups{state.lower()}"
            yield Family(name, "gauge", f"Groups that are {state}.", [Sample(states[state])])
        yield Family(
            f"{_GROUPS}numoffsets", "gauge", "Offsets committed.", [Sample(sum(len(shard.offsets) for shard in shards))]
        )
        members = [
            Sample(len(group.members), [("consumergroup", name)])
            for shard in shards
            for name, group in shard.groups.items()
        ]
        yield Family("kafka_consumergroup_members", "gauge", "Members of a group.", members)
        committed = [
            (group, topic, number, stored.value.offset)
            for shard in shards
            for group in shard.offsets.groups()
            for (topic, number), stored in shard.offsets.of(group).items()
        ]  # a list: commits may come while it is written
        offsets = (Sample(offset, _labels(group, topic, number)) for group, topic, number, offset in committed)
        yield Family("kafka_consumergroup_current_offset", "gauge", "Offset that a group has committed.", offsets)
        yield Family("kafka_consumergroup_lag", "gauge", "Records between that and the end.", self._lags(committed))

    def _shards(self) -> list[CoordinatorShard]:
        try:
            return list(self._groups.shards())
        except CoordinatorError:  # they are being loaded
            return []

    def _lags(self, committed: Iterable[tuple[str, str, int, int]]) -> Iterator[Sample]:
        for group, topic, number, offset in committed:
            partition = self._topics.partition(topic, number)
            if partition is not None:
                yield Sample(max(partition.log.high_watermark - offset, 0), _labels(group, topic, number))


def _json(answer: Mapping[str, object], *, is_fine: bool) -> Page:
    status = HTTPStatus.OK if is_fine else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(json.dumps(answer).encode() + b"\n", "application/json", status)


def _labels(group: str, topic: str, number: int) -> Labels:
    return [("consumergroup", group), ("topic", topic), ("partition", str(number))]


def _times(named: Iterable[tuple[str, Durations]]) -> Iterator[Sample]:
    for name, of in named:
        if of.count:
            label = ("request", name)
            for fraction, seconds in zip(QUANTILES, of.quantiles(), strict=True):
                yield Sample(seconds * 1000, [label, ("quantile", f"{fraction:.3g}".ljust(4, "0"))])
            yield Sample(of.total * 1000, [label], "_sum")
            yield Sample(of.count, [label], "_count")


def _total(topic: Topic, counter: str) -> int:
    return sum(getattr(partition, counter) for partition in topic.partitions if partition is not None)


def _partitions(topics: Topics) -> Iterator[tuple[Labels, Replica]]:
    for topic in topics:
        for number, partition in enumerate(topic.partitions):
            if partition is not None:
                yield [("topic", topic.name), ("partition", str(number))], partition


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


_STATM: Final = "/proc/self/statm"
_DESCRIPTORS: Final = "/proc/self/fd"
_KIBIBYTES: Final = 1 if sys.platform == "darwin" else 1024


def process_families(fs: Fs, started_ms: int) -> Iterator[Family]:
    """Without /proc, resident memory is the peak, and open files are not counted."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    yield Family(
        "process_cpu_seconds_total", "counter", "CPU time, user and system.", [_one(use.ru_utime + use.ru_stime)]
    )
    yield Family("process_start_time_seconds", "gauge", "Start, since 1970.", [_one(started_ms / 1000)])
    resident = use.ru_maxrss * _KIBIBYTES
    if fs.exists(_STATM):
        page = os.sysconf("SC_PAGE_SIZE")
        total, resident_pages = fs.read(_STATM).split()[:2]
        resident = int(resident_pages) * page
        yield Family("process_virtual_memory_bytes", "gauge", "Virtual memory.", [_one(int(total) * page)])
        yield Family("process_open_fds", "gauge", "Open files.", [_one(_open_files(fs))])
    yield Family("process_resident_memory_bytes", "gauge", "Resident memory.", [_one(resident)])
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Family("process_max_fds", "gauge", "Files that may be open.", [_one(limit)])


def _open_files(fs: Fs) -> int:
    """Linux 6.2 and later have the number as the directory's size; a list of thousands takes milliseconds."""
    return fs.stat(_DESCRIPTORS).size or len(fs.listdir(_DESCRIPTORS))


def _one(value: float) -> Sample:
    return Sample(value)
