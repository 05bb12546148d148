"""Fetches ranges of offsets from brokers: record batches as the leaders have them, in order, each range to its end.

Leaders may change, restart or throttle meanwhile; a follower may be nearer (KIP-392). The next request to a broker is
sent before its last answer is decoded, so that broker and client work at the same time.

Metadata of a topic names all of its partitions: with thousands of them, asking for it costs more than a small range. So
targets say who led when they were planned, and the fetcher looks up a leader only if that is unknown or has failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.client.bootstrap import HostPort
from seglog.client.cluster_connections import BrokerAddress, ClusterConnections
from seglog.client.connection import describe_code
from seglog.client.leader_offsets import EARLIEST, LATEST, MOVED, list_offsets
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import BrokerUnavailableError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.records import any_magic
from seglog.records.batch import BatchHeader, Entry, entries

_IDS_FROM: Final = 13
"""The version of Fetch that names topics by id (KIP-516): a broker then refuses another topic of the same name."""
_PARTITIONS_AT_ONCE: Final = 1000
_MARGIN: Final = 64 << 10
"""Bytes that are asked for beyond the estimate of a range."""
_DELETED_AFTER: Final = 5.0
"""Seconds after which a partition that brokers do not know counts as deleted: one that starts may not know it yet."""
_EMPTY_ANSWERS: Final = 3
"""After so many answers without records, from a broker that could have returned all of a range, it has no more."""


class FetchTarget(NamedTuple):
    """The offsets ``start`` to before ``end`` of a partition, of about ``size`` bytes.

    ``topic_id`` is None only where brokers have no topic ids (before Kafka 2.8). ``leader`` is the broker that led a
    while ago; None: it must be looked up.
    """

    topic_partition: TopicPartition
    topic_id: UUID | None
    start: int
    end: int
    size: int
    leader: BrokerAddress | None = None


class AbortedProducer(NamedTuple):
    """The first offset of an aborted transaction, which ends with the producer's next marker."""

    producer_id: int
    first_offset: int


class FetchedRecords(NamedTuple):
    """Record batches of ``target``: the first may begin before the wanted offset, the last may be incomplete.
    ``broker`` is for messages."""

    target: FetchTarget
    position: int
    broker: str
    records: bytes
    aborted: tuple[AbortedProducer, ...]


def readable_batches(fetched: FetchedRecords) -> Iterator[tuple[BatchHeader, Entry | None]]:
    """Each whole batch, with its entry unless it is a marker or its transaction was aborted. `CorruptError`."""
    to_begin = deque(sorted(fetched.aborted, key=lambda one: one.first_offset))
    aborted: set[int] = set()
    for entry in entries(fetched.records):
        header = any_magic.describe(fetched.records, entry, deep=False)
        while to_begin and to_begin[0].first_offset <= header.last_offset:
            aborted.add(to_begin.popleft().producer_id)
        if header.is_control:
            aborted.discard(header.producer_id)
            yield header, None
        elif header.is_transactional and header.producer_id in aborted:
            yield header, None
        else:
            any_magic.check(fetched.records, entry)
            yield header, entry


class _Progress:
    """How far one target is. ``node`` is the broker to ask, None if it must be looked up.

    Since the last progress it was ``passed_over`` by full answers, had ``empty`` answers that show that there is
    nothing, and failed first at ``failing_since``.
    """

    __slots__ = ("empty", "failing_since", "node", "passed_over", "position", "target")

    def __init__(self, target: FetchTarget) -> None:
        self.target = target
        self.position = target.start
        self.node: int | None = None
        self.failing_since: float | None = None
        self.empty = 0
        self.passed_over = 0

    @property
    def is_done(self) -> bool:
        return self.position >= self.target.end

    def receive(self, offset: int) -> None:
        """All records below ``offset`` are here."""
        self.position = offset
        self.failing_since, self.empty, self.passed_over = None, 0, 0

    def pass_over(self) -> None:
        """A full answer had no room for a whole batch."""
        self.passed_over += 1

    def find_nothing(self) -> int:
        """An answer shows that there is nothing up to the end. Returns how many did."""
        self.empty += 1
        return self.empty

    def skip_to(self, offset: int) -> None:
        """There are no records before ``offset``, or none that can be read."""
        self.position = min(offset, self.target.end)

    def ask(self, node: int) -> None:
        self.node = node

    def fail(self, now: float) -> float:
        """The broker is to be looked up again. Returns for how long the target has failed."""
        self.node = None
        if self.failing_since is None:
            self.failing_since = now
        return now - self.failing_since


class RangeFetcher:
    """Iterate over it once, in one thread, and call `advance` for each item before the next.

    ``patience``: seconds for which a partition may fail. Then `RequestFailedError` names it, the broker and the last
    reason. ``lose`` is called with a text when offsets no longer exist, and may raise; otherwise the fetcher
    continues after them.

    A broker that returns no records shows that there are none only if it could have returned the whole range: its high
    watermark, and with ``read_committed`` its last stable offset, must be at or past the end. Both are lower for a
    while on a new leader and on a follower.
    """

    def __init__(
        self,
        cluster: ClusterConnections,
        targets: Sequence[FetchTarget],
        *,
        read_committed: bool,
        patience: float,
        lose: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self._read_committed = read_committed
        self._patience = patience
        self._lose = lose
        self._clock = cluster.clock
        self._all = {target.topic_partition: _Progress(target) for target in targets if target.end > target.start}
        self._names = {target.topic_id: target.topic_partition.topic for target in targets if target.topic_id}
        self._brokers: dict[int, HostPort] = {}
        """Addresses, of leaders as they were planned or of all brokers as Metadata had them last."""
        self._leaders: dict[TopicPartition, int] = {}
        self._gone_after = min(cluster.config.timeout, patience)
        """Seconds after which a shorter log is a loss: a new leader may not know its high watermark yet."""
        self._first: TopicPartition | None = None
        """The partition that the last answer could not leave out for lack of room (KIP-74)."""
        self._asked: deque[tuple[int, HostPort, list[TopicPartition]]] = deque()
        """The requests under way: node, address and partitions, oldest first; one at most for each broker."""
        self._not_before: dict[int, float] = {}
        """Until when a broker has asked for quiet (KIP-219)."""
        self._next_look_up = self._clock.monotonic()
        self._unread = 0
        """Items of the last answer that the caller has not advanced yet."""

    def __iter__(self) -> Generator[FetchedRecords, None, None]:
        self._ask_planned_leaders()
        try:
            while True:
                self._send()
                if not self._asked:
                    if all(one.is_done for one in self._all.values()):
                        return
                    self._wait()
                    continue
                yield from self._receive()
        finally:
            for _, address, _ in self._asked:  # an answer that is not read would be taken for the next one
                self._cluster.forget(address)
            self._asked.clear()

    def advance(self, fetched: FetchedRecords, offset: int) -> None:
        """All records below ``offset`` were received. Sends the next request once the whole answer was."""
        progress = self._all[fetched.target.topic_partition]
        if offset > progress.position:
            progress.receive(offset)
        elif fetched.target.topic_partition == self._first:
            self._trouble([progress], f"broker {fetched.broker}: the answer has no whole batch")
        else:  # the batch did not fit into what was left of the answer
            progress.pass_over()
        self._unread -= 1
        if not self._unread:
            self._send()

    # Requests

    def _ask_planned_leaders(self) -> None:
        """Begin at the leaders of the plan, unless they are away, or could take another topic for that of a target."""
        usable: dict[BrokerAddress, bool] = {}
        for progress in self._all.values():
            leader = progress.target.leader
            if leader is None:
                continue
            if leader not in usable:
                usable[leader] = self._names_ids(leader.address)
            if usable[leader] or progress.target.topic_id is None:
                self._brokers[leader.node_id] = leader.address
                self._ask_leader(progress, leader.node_id)

    def _names_ids(self, address: HostPort) -> bool:
        try:
            return (self._cluster.at(address).version(ApiKey.FETCH) or 0) >= _IDS_FROM
        except BrokerUnavailableError:
            return False

    def _ask_leader(self, progress: _Progress, node: int) -> None:
        self._leaders[progress.target.topic_partition] = node
        progress.ask(node)

    def _send(self) -> None:
        """Ask each broker that has something and is not busy."""
        self._look_up()
        busy = {node for node, _, _ in self._asked}
        now = self._clock.monotonic()
        by_node: dict[int, list[_Progress]] = {}
        for progress in self._all.values():
            if not progress.is_done and progress.node is not None and progress.node not in busy:
                by_node.setdefault(progress.node, []).append(progress)
        for node, wanted in by_node.items():
            if self._not_before.get(node, 0.0) > now:
                continue
            address = self._brokers.get(node)
            if address is None:
                self._trouble(wanted, f"broker {node} is not in the cluster any more")
                continue
            # The answer has room for the first ones only: those that were left out go first.
            some = sorted(wanted, key=lambda one: -one.passed_over - one.empty)[:_PARTITIONS_AT_ONCE]
            try:
                self._cluster.at(address).send(ApiKey.FETCH, self._request(some))
            except BrokerUnavailableError as error:
                self._cluster.forget(address)
                self._trouble(some, str(error))
                continue
            self._asked.append((node, address, [one.target.topic_partition for one in some]))

    def _request(self, wanted: Sequence[_Progress]) -> dict[str, Any]:
        config = self._config
        topics: dict[tuple[str, UUID | None], list[dict[str, int]]] = {}
        for one in wanted:
            target = one.target
            left = target.end - one.position
            size = target.size * left // max(target.end - target.start, 1) + _MARGIN
            topics.setdefault((target.topic_partition.topic, target.topic_id), []).append(
                {
                    "partition": target.topic_partition.partition,
                    "current_leader_epoch": -1,
                    "fetch_offset": one.position,
                    "last_fetched_epoch": -1,
                    "log_start_offset": -1,
                    "partition_max_bytes": min(config.max_partition_fetch_bytes, size),
                }
            )
        return {
            "replica_id": -1,
            "max_wait": int(config.fetch_max_wait * 1000),
            "min_bytes": config.fetch_min_bytes,
            "max_bytes": config.fetch_max_bytes,
            "isolation_level": int(self._read_committed),
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {"topic": name, "topic_id": topic_id, "partitions": partitions}
                for (name, topic_id), partitions in topics.items()
            ],
            "forgotten_topics_data": (),
            # Without a rack the leader answers itself.
            "rack_id": "" if any(one.failing_since is not None for one in wanted) else config.client_rack,
        }

    def _look_up(self) -> None:
        """Find the leaders of targets that have no broker, if one can be reached."""
        lost = [one for one in self._all.values() if one.node is None and not one.is_done]
        now = self._clock.monotonic()
        if not lost or now < self._next_look_up:
            return
        self._next_look_up = now + self._config.retry_backoff
        try:
            metadata = self._cluster.metadata({one.target.topic_partition.topic for one in lost})
        except BrokerUnavailableError as error:
            self._trouble(lost, str(error))
            return
        self._brokers = dict(metadata.brokers)
        for one in lost:
            partition = one.target.topic_partition
            topic = metadata.topics.get(partition.topic)
            leader = metadata.leader(partition)
            if topic is not None and topic.topic_id and one.target.topic_id not in (None, topic.topic_id):
                self._skip(one, one.target.end, f"topic {partition.topic} was deleted and created again")
            elif leader is not None and leader.leader in metadata.brokers:
                self._ask_leader(one, leader.leader)
            elif topic is not None and topic.error and topic.error not in MOVED:
                raise RequestFailedError(f"topic {partition.topic}: {describe_code(topic.error)}")
            elif metadata.lacks(partition):
                if one.fail(now) >= min(self._gone_after, _DELETED_AFTER):
                    self._skip(one, one.target.end, f"{partition} was deleted")
            else:
                self._trouble([one], "the partition has no leader")

    def _skip(self, one: _Progress, offset: int, reason: str) -> None:
        """Report a loss and continue at ``offset``."""
        low = one.position
        one.skip_to(offset)
        self._lose(f"{reason}: offsets {low} to {one.position - 1} of {one.target.topic_partition} were not read")

    def _trouble(self, some: Sequence[_Progress], reason: str) -> None:
        """Note a failure that may pass; raise if it has lasted too long."""
        now = self._clock.monotonic()
        for one in some:
            if one.fail(now) > self._patience:
                raise RequestFailedError(
                    f"{one.target.topic_partition}: no records from offset {one.position} on for "
                    f"{self._patience:g} seconds: {reason}"
                )

    def _wait(self) -> None:
        """Nothing is under way: wait for a broker that throttles, or for a leader."""
        now = self._clock.monotonic()
        self._clock.sleep(
            min(
                max((self._next_look_up if one.node is None else self._not_before.get(one.node, now)) - now, 0.0)
                for one in self._all.values()
                if not one.is_done
            )
        )

    # Answers

    def _receive(self) -> Iterator[FetchedRecords]:
        node, address, asked = self._asked[0]
        try:
            answer = self._cluster.at(address).receive()
        except BrokerUnavailableError as error:
            self._asked.popleft()
            self._cluster.forget(address)
            self._trouble([self._all[partition] for partition in asked], str(error))
            self._clock.sleep(self._config.retry_backoff)
            return
        self._asked.popleft()
        if answer.throttle_time > 0:
            self._not_before[node] = self._clock.monotonic() + answer.throttle_time / 1000
        else:
            self._not_before.pop(node, None)
        if answer.error_code:
            self._trouble([self._all[one] for one in asked], f"broker {address}: {describe_code(answer.error_code)}")
            self._clock.sleep(self._config.retry_backoff)
            return
        self._first = asked[0]
        found = list(self._partitions(answer, address, node, asked))
        self._unread = len(found)
        yield from found

    def _partitions(
        self, answer: Message, address: HostPort, node: int, asked: Sequence[TopicPartition]
    ) -> Iterator[FetchedRecords]:
        is_moved = False
        left_out = dict.fromkeys(asked)
        for topic in answer.responses:
            name = getattr(topic, "topic", None) or self._names.get(topic.topic_id, "")
            for one in topic.partitions:
                progress = self._all.get(TopicPartition(name, one.partition_index))
                if progress is None or progress.is_done:
                    continue
                left_out.pop(progress.target.topic_partition, None)
                if one.error_code:
                    is_moved |= self._failed(progress, one.error_code, address, node)
                elif one.records:
                    aborted = one.aborted_transactions or ()
                    yield FetchedRecords(
                        progress.target,
                        progress.position,
                        str(address),
                        one.records,
                        tuple(AbortedProducer(txn.producer_id, txn.first_offset) for txn in aborted),
                    )
                elif one.preferred_read_replica >= 0:
                    is_moved |= self._prefer(progress, one.preferred_read_replica, address)
                else:
                    is_first = progress.target.topic_partition == asked[0]
                    is_moved |= self._empty(progress, one, address, is_first=is_first)
        if left_out and not answer.throttle_time:  # a broker that throttles returns none of them
            some = [self._all[one] for one in left_out if not self._all[one].is_done]
            self._trouble(some, f"broker {address}: the answer leaves out the partition")
            is_moved = True
        if is_moved:
            self._clock.sleep(self._config.retry_backoff)

    def _failed(self, progress: _Progress, code: int, address: HostPort, node: int) -> bool:
        """Handle a partition's error; returns whether to wait before the next try."""
        partition = progress.target.topic_partition
        reason = f"broker {address}: {describe_code(code)}"
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._leaders.get(partition) == node:
                return self._out_of_range(progress, reason)
        elif code not in MOVED and code != ErrorCode.UNKNOWN_SERVER_ERROR:
            raise RequestFailedError(f"{partition}, offset {progress.position}: {reason}")
        self._trouble([progress], reason)
        return True

    def _out_of_range(self, progress: _Progress, reason: str) -> bool:
        partition, position, end = progress.target.topic_partition, progress.position, progress.target.end
        try:
            with self._cluster.another() as cluster:  # the others may be about to get answers to Fetch
                (first,) = list_offsets(cluster, {partition: EARLIEST}).values()
                (latest,) = list_offsets(cluster, {partition: LATEST}).values()
        except RequestFailedError as error:  # it may be deleted at this moment
            self._trouble([progress], str(error))
            return True
        if first > position:
            progress.skip_to(first)
            self._lose(f"{partition}: offsets {position} to {progress.position - 1} were deleted before they were read")
            return False
        if latest >= position:
            self._trouble([progress], reason)
        elif progress.fail(self._clock.monotonic()) >= self._gone_after:
            progress.skip_to(end)
            self._lose(f"{partition} ends with offset {latest - 1}: offsets {position} to {end - 1} were truncated")
        return True

    def _prefer(self, progress: _Progress, replica: int, address: HostPort) -> bool:
        """Continue at the replica that the leader says is nearest; errors lead back to the leader, which is then asked
        for the records themselves. Returns whether to wait before the next try."""
        reason = f"broker {address} refers to replica {replica}"
        if progress.failing_since is None:
            try:
                if replica not in self._brokers:  # so far only leaders may be known
                    self._brokers |= self._cluster.metadata(()).brokers
            except BrokerUnavailableError as error:
                reason += f": {error}"
            if replica in self._brokers:
                progress.ask(replica)
                return False
        self._trouble([progress], reason)
        return True

    def _empty(self, progress: _Progress, answer: Message, address: HostPort, *, is_first: bool) -> bool:
        """An answer without records. It was full, unless the partition was the first one (KIP-74). Returns whether to
        wait before the next try."""
        if not is_first:
            progress.pass_over()
            return False
        bounds = {"high watermark": answer.high_watermark}
        if self._read_committed:
            bounds["last stable offset"] = answer.last_stable_offset
        if answer.diverging_epoch.end_offset >= 0:
            reason = f"the log diverges at offset {answer.diverging_epoch.end_offset}"
        else:
            low = [(name, bound) for name, bound in bounds.items() if bound < progress.target.end]
            if not low:
                if progress.find_nothing() >= _EMPTY_ANSWERS:
                    progress.skip_to(progress.target.end)
                return False
            name, bound = low[0]
            reason = f"the {name} is {bound if bound >= 0 else 'unknown'}, the range ends at {progress.target.end}"
        self._trouble([progress], f"broker {address}: {reason}")
        return True
