"""Which replica is read and how far, against a model of replication that knows what was committed."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.offline.replica_choice import ReplicaFiles, agreed, choose
from tests.cases import case

NODES = 3
Step = tuple[str, int, int]
"""An operation, the number of its broker, and an amount."""


class Node:
    """A broker's replica: a record is (epoch, value), and its offset its place in the list."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.log: list[tuple[int, int]] = []
        self.epochs = LeaderEpochs()
        self.start = self.high = self.checkpoint = 0
        self.is_up = True

    def append(self, record: tuple[int, int]) -> None:
        self.epochs.assign(record[0], len(self.log))
        self.log.append(record)

    def follow(self, leader: Node, most: int) -> None:
        shared = 0
        while shared < min(len(self.log), len(leader.log)) and self.log[shared] == leader.log[shared]:
            shared += 1
        if shared < len(self.log):
            del self.log[shared:]
            self.epochs.truncate_from_end(shared)
            self.high, self.checkpoint = min(self.high, shared), min(self.checkpoint, shared)
            self.start = min(self.start, shared)
        for record in leader.log[shared : shared + most]:
            self.append(record)
        self.high = max(self.high, min(leader.high, len(self.log)))

    def files(self) -> ReplicaFiles:
        epochs = self.epochs.copy()
        epochs.truncate_from_start(self.start)
        return ReplicaFiles(self.name, self.start, len(self.log), self.checkpoint, epochs)


class Cluster:
    """One partition on three brokers; ``unclean``: who leads need not be in sync."""

    def __init__(self, *, unclean: bool = False) -> None:
        self.nodes = [Node(f"b{number}") for number in range(NODES)]
        self.unclean = unclean
        self.epoch = self.value = self.epoch_start = 0
        self.isr = set(range(NODES))
        self.ends: dict[int, int] = {}
        self.leader: int | None = None
        self.committed: list[tuple[int, int]] = []
        self.elect(0)

    def elect(self, number: int) -> None:
        eligible = [n for n in self.isr if self.nodes[n].is_up]
        if self.unclean:
            eligible = [n for n in range(NODES) if self.nodes[n].is_up]
        if not eligible:
            self.leader = None
            return
        self.leader = number if number in eligible else eligible[0]
        self.epoch += 1
        if self.leader not in self.isr:
            self.isr = {self.leader}
        self.ends = {}
        node = self.nodes[self.leader]
        node.epochs.assign(self.epoch, len(node.log))
        self.epoch_start = len(node.log)

    def advance(self) -> None:
        assert self.leader is not None
        leader = self.nodes[self.leader]
        ends = [len(leader.log) if n == self.leader else self.ends.get(n, 0) for n in self.isr]
        leader.high = max(leader.high, min(ends))
        if not self.unclean:  # what Raft calls leader completeness: else the model is wrong
            assert leader.log[: len(self.committed)] == self.committed
            self.committed = leader.log[: max(leader.high, len(self.committed))]

    def do(self, step: Step) -> None:
        what, number, amount = step
        node = self.nodes[number]
        if what == "down" and node.is_up:
            node.is_up = False
            if number == self.leader:
                self.elect(amount % NODES)
        elif what == "up":
            node.is_up = True
            if self.leader is None:
                self.elect(number)
        elif what == "elect":
            self.elect(number)
        elif what == "checkpoint":
            node.checkpoint = node.high
        elif what == "retain":
            node.start = max(node.start, node.high - amount)
        elif what == "round":
            for follower in range(NODES):
                self.do(("fetch", follower, amount))
        elif self.leader is not None:
            self.replicate(what, number, amount)

    def replicate(self, what: str, number: int, amount: int) -> None:
        assert self.leader is not None
        leader, node = self.nodes[self.leader], self.nodes[number]
        if what == "produce":
            for _ in range(amount):
                self.value += 1
                leader.append((self.epoch, self.value))
            self.advance()
        elif what == "fetch" and number != self.leader and node.is_up:
            shared = node.log == leader.log[: len(node.log)]
            if shared:
                self.ends[number] = len(node.log)
                self.advance()
            node.follow(leader, amount if shared else 0)
            if shared and self.ends[number] >= max(leader.high, self.epoch_start):  # KAFKA-7128
                self.isr.add(number)
        elif what == "shrink" and number != self.leader:
            self.isr.discard(number)
            self.advance()


WEIGHTS = {
    "produce": 6,
    "fetch": 12,
    "round": 4,
    "shrink": 3,
    "down": 2,
    "up": 4,
    "elect": 2,
    "checkpoint": 4,
    "retain": 1,
}


def steps_of(seed: int) -> list[Step]:
    rng = Random(seed)
    kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=80)
    return [(kind, rng.randrange(NODES), rng.randrange(6)) for kind in kinds]


STEPS = st.integers(0, 1 << 32).map(steps_of)
SEEN = st.sets(st.integers(0, NODES - 1), min_size=1)


@given(STEPS, SEEN)
def test_only_committed_records_are_chosen_whichever_replicas_are_missing(steps: list[Step], seen: set[int]) -> None:
    case()
    cluster = Cluster()
    for step in steps:
        cluster.do(step)
        found = choose([cluster.nodes[n].files() for n in sorted(seen)])
        assert found.until <= len(cluster.committed)
        for replica in (found.replica, *found.others):
            log = cluster.nodes[int(replica.directory[1])].log
            assert len(log) >= found.until
            assert log[: found.until] == cluster.committed[: found.until]
            assert found.replica.log_start <= replica.log_start
        if cluster.leader in seen:  # then nothing is left out that anybody has, and knows to be committed
            files = [cluster.nodes[n].files() for n in seen]
            assert found.until >= max((one.committed for one in files if one.log_start < one.committed), default=0)


@given(STEPS, SEEN)
def test_what_an_unclean_election_threw_away_is_not_read(steps: list[Step], seen: set[int]) -> None:
    """As long as the directory of the new leader is among those that are seen."""
    case()
    cluster = Cluster(unclean=True)
    for step in steps:
        cluster.do(step)
        if cluster.leader is None or cluster.leader not in seen:
            continue
        found = choose([cluster.nodes[n].files() for n in sorted(seen)])
        leader = cluster.nodes[cluster.leader]
        assert found.until >= leader.files().committed
        for replica in (found.replica, *found.others):
            assert cluster.nodes[int(replica.directory[1])].log[: found.until] == leader.log[: found.until]


@given(STEPS)
def test_where_two_replicas_agree_is_where_their_records_do(steps: list[Step]) -> None:
    case()
    cluster = Cluster(unclean=True)
    for step in steps:
        cluster.do(step)
    for one in cluster.nodes:
        for other in cluster.nodes:
            shared = agreed(one.files(), other.files())
            assert one.log[:shared] == other.log[:shared]
            assert shared == agreed(other.files(), one.files())


def replica(name: str, start: int, end: int, claimed: int | None, *epochs: tuple[int, int]) -> ReplicaFiles:
    return ReplicaFiles(name, start, end, claimed, LeaderEpochs(epochs))


def test_without_a_high_watermark_the_latest_epoch_is_read_and_not_the_longest_log() -> None:
    old, new = replica("old", 0, 90, None, (1, 0)), replica("new", 0, 80, None, (1, 0), (2, 40))
    assert choose([old, new])[:2] == (new, 80)
    known = [old._replace(claimed=40), new._replace(claimed=60)]
    assert choose(known)[:2] == (known[1], 60)
    assert choose(known, to_end=True)[:2] == (known[1], 80)
    assert choose(known, to_end=True).by is None


def test_of_those_that_have_it_the_one_that_begins_first_is_read() -> None:
    leader, follower = replica("a", 50, 100, 90, (1, 0)), replica("b", 10, 95, 70, (1, 0))
    behind = replica("c", 0, 89, 80, (1, 0))
    found = choose([leader, follower, behind])
    assert found == (follower, 90, (leader,), leader)
    assert choose([leader, behind]) == (leader, 90, (), leader)


def test_logs_without_epochs_agree_where_both_are_committed() -> None:
    one, other = replica("a", 0, 100, 60), replica("b", 0, 90, 80)
    assert choose([one, other]) == (other, 80, (), other)
    assert agreed(one, other) == 60


def test_a_high_watermark_beyond_the_log_says_nothing_of_another_log() -> None:
    lost, longer = replica("lost", 0, 40, 90, (1, 0)), replica("longer", 0, 95, 50, (1, 0), (2, 45))
    assert choose([lost, longer])[:2] == (longer, 50)


def test_a_dead_broker_claims_what_an_unclean_election_threw_away() -> None:
    dead, new = replica("dead", 0, 100, 100, (1, 0)), replica("new", 0, 80, 70, (1, 0), (3, 50))
    assert choose([dead, new]) == (new, 70, (), new)
    fresh = new._replace(claimed=40)  # its high watermark has not moved yet: what both have is read
    assert choose([dead, fresh]) == (fresh, 50, (dead,), dead)
