"""A leader and its follower, two brokers of a virtual cluster, and the topics that they replicate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

from seglog.protocol import replica_fetch
from seglog.protocol.apis import ApiKey
from seglog.protocol.framing import RequestHeader, frame_response
from seglog.protocol.replica_fetch import RequestHead
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir
from tests.kit.virtual_cluster import LAG_MS, VirtualCluster
from tests.replication.logs import batch, content

LEADER = 1
FOLLOWER = 2


class Topic:
    """A topic whose ``leaders`` and ``followers`` are the replicas of broker 1 and of broker 2, by partition."""

    def __init__(self, pair: Pair, topic_id: UUID, partitions: int) -> None:
        self.topic_id = topic_id
        self.leaders = [pair.leader.replica(topic_id, number) for number in range(partitions)]
        self.followers = [pair.follower.replica(topic_id, number) for number in range(partitions)]


class Pair(VirtualCluster):
    """Broker 1 leads what `lead` says, and broker 2 follows it there."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(2, settings)
        self.leader, self.follower = self[LEADER], self[FOLLOWER]
        self.topics: list[Topic] = []

    @property
    def leaders_directory(self) -> LogDir:
        return self.leader.running.directories.dirs[0]

    def make(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> Topic:
        """A topic without leaders."""
        topic = Topic(self, self.create(name, partitions, config=config), partitions)
        self.topics.append(topic)
        return topic

    def lead(self, topic: Topic, *numbers: int, epoch: int | None = None) -> list[Replica]:
        """Let broker 1 lead these partitions, or all. Returns all its replicas."""
        numbers = numbers or tuple(range(len(topic.leaders)))
        self.elect(topic.topic_id, LEADER, *numbers, epoch=epoch)
        self.until(lambda: all(topic.leaders[number].leads for number in numbers))
        return topic.leaders

    def led(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> Topic:
        """A topic that broker 1 leads."""
        topic = self.make(name, partitions, config)
        self.lead(topic)
        return topic

    def append(self, replica: Replica, data: bytes | None = None, *, needs_all: bool = False) -> None:
        """As a producer's batch, to a replica of the leader."""
        data = batch() if data is None else data
        self.leader.call(lambda: replica.append(data, needs_all=needs_all))

    @property
    def is_fetching(self) -> bool:
        """Whether the follower has a connection to the leader."""
        return bool(self.ends(FOLLOWER, LEADER))

    def until_asked(self) -> None:
        """Until the next request is there."""
        count = len(self.leader.requests)
        self.until(lambda: len(self.leader.requests) > count)

    def until_same(self, *topics: Topic) -> None:
        """Until the follower has the leader's logs, up to the last byte, and both know that they are committed: before
        the leader would take a follower that asks for nothing out of the ISR."""
        pairs = [both for topic in topics or self.topics for both in zip(topic.leaders, topic.followers, strict=True)]
        self.until(lambda: all(_is_caught_up(*both) for both in pairs), LAG_MS / 2000)
        for leader, follower in pairs:
            assert content(follower) == content(leader)

    @contextmanager
    def instead(self, answers: Callable[[RequestHeader], bytes | None]) -> Iterator[None]:
        """Meanwhile the test answers fetches, unless it returns None."""
        self.leader.instead = lambda header: answers(header) if header.key == ApiKey.FETCH else None
        try:
            yield
        finally:
            self.leader.instead = lambda _: None

    def forget_session(self) -> None:
        """Another session takes the place of the follower's, which the leader does not know any more."""
        member = self.follower.me
        assert member is not None
        head = RequestHead(0, 1, 1 << 20, 0, 0, *member)
        body = replica_fetch.write_request(head, {}, {})
        proof = self.follower.running.membership.proof
        self.ask(self.leader, ApiKey.FETCH, replica_fetch.VERSION, body, proof=proof)


def _is_caught_up(leader: Replica, follower: Replica) -> bool:
    one, other = follower.log, leader.log
    end = other.log_end_offset
    return (one.log_end_offset, one.high_watermark, other.high_watermark) == (end, end, end)


def reply(header: RequestHeader, body: bytes) -> bytes:
    """An answer with any body."""
    return frame_response(header.key, header.version, header.correlation_id, len(body)) + body
