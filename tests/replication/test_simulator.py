"""Replication keeps its promises whatever happens; and each rule that a bug of Kafka's past has taught is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from seglog.cluster import election
from seglog.cluster.model import Broker, Member, PartitionState
from seglog.replication.progress import Progress
from seglog.replication.replica import Brokers, Replica, ReplicaAnswer, ReplicaFetch
from seglog.storage.epochs import EpochEnd
from seglog.storage.log import Log
from tests.cases import case
from tests.replication.run import run
from tests.replication.simulator import RefusedError, Store

_SEEDS = 40
"""A test's; four tests side by side."""
_TRIES = 40
"""In so many seeds a bug has to be found."""


def _run(seed: int) -> None:
    run(seed, partitions=1 + seed % 2, seconds=20)


@pytest.mark.parametrize("first", range(0, 4 * _SEEDS, _SEEDS))
def test_nothing_is_lost(first: int) -> None:
    """`python -m tests.replication SEED` runs one of them again."""
    for seed in range(first, first + _SEEDS):
        case()
        try:
            _run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_same_seed_does_the_same() -> None:
    one, other = (run(3, partitions=2, seconds=10) for _ in range(2))
    assert (one.trace, one.events) == (other.trace, other.events)
    assert run(4, partitions=2, seconds=10).trace != one.trace


def test_clients_get_something_done() -> None:
    """A world in which everything fails would keep every promise."""
    outcomes = [run(seed, seconds=10).clients.outcomes for seed in range(5)]
    assert sum(one["ok"] for one in outcomes) > 5 * 50


# Bugs put back on purpose: the names are those of Kafka's issues.

Bug = Callable[[pytest.MonkeyPatch], None]


def _kip_101(patch: pytest.MonkeyPatch) -> None:
    """A follower cuts at its high watermark, and nobody asks for epochs."""

    def follow(self: Replica, state: PartitionState, _: Member) -> None:
        self.progress, self.leader, self.log.hw_follows_end = None, state.leader, False
        self._truncate(min(self.log.high_watermark, self.log.log_end_offset))

    patch.setattr(Replica, "_follow", follow)
    patch.setattr(Replica, "diverging_epoch", lambda *_: None)


def _kip_279(patch: pytest.MonkeyPatch) -> None:
    """An epoch that the leader does not know is said to end where its log does."""

    def end_offset_for(self: Replica, epoch: int) -> EpochEnd:
        known = any(entry.epoch == epoch for entry in self.log.epochs.entries)
        if known and epoch != self.leader_epoch:
            return self.log.end_offset_for_epoch(epoch)
        return EpochEnd(epoch, self.log.log_end_offset)

    patch.setattr(Replica, "end_offset_for", end_offset_for)


def _kip_320(patch: pytest.MonkeyPatch) -> None:
    """Answers are taken whoever gave them, and in whatever epoch they were asked for."""

    def take(self: Replica, asked: ReplicaFetch, answer: ReplicaAnswer, records: bytes) -> None:
        progress, self.progress = self.progress, None
        if asked.offset >= self.log.log_end_offset:
            asked = asked._replace(leader_epoch=self.leader_epoch, offset=self.log.log_end_offset)
        honest(self, asked, answer, records)
        self.progress = progress

    honest = Replica.take
    patch.setattr(Replica, "check_epoch", lambda *_: None)
    patch.setattr(Replica, "take", take)


def _kafka_7128(patch: pytest.MonkeyPatch) -> None:
    """A follower joins before it has what is committed."""

    def propose(self: Progress, high_watermark: int, *more: Any) -> object:
        del high_watermark
        start, self.epoch_start = self.epoch_start, 0
        try:
            return honest(self, 0, *more)
        finally:
            self.epoch_start = start

    honest = Progress.propose
    patch.setattr(Progress, "propose", propose)


def _kafka_7415(patch: pytest.MonkeyPatch) -> None:
    """A leader that has written nothing yet has no entry for its epoch."""
    patch.setattr(Log, "assign_epoch", lambda *_: None)


def _kafka_13141(patch: pytest.MonkeyPatch) -> None:
    """A follower whose log is another one counts as having what it says."""

    def serve(self: Replica, asked: ReplicaFetch, brokers: Brokers, now_ms: int) -> ReplicaAnswer:
        if self.progress is not None and asked.node_id in self.progress.followers:
            follower = self.progress.followers[asked.node_id]
            follower.fetched(asked.offset, 0, asked.broker_epoch, self.log.log_end_offset, now_ms, None)
            self.advance(brokers, now_ms)
        return honest(self, asked, brokers, now_ms)

    honest = Replica.serve_replica
    patch.setattr(Replica, "serve_replica", serve)


def _kip_966(patch: pytest.MonkeyPatch) -> None:
    """The last one in sync commits alone: what it loses is lost."""
    patch.setattr(Progress, "has_enough", property(lambda _: True))


def _lost_pages(patch: pytest.MonkeyPatch) -> None:
    """Who comes back from a power cut is believed to have what it had (the ABA problem of ZooKeeper's controller)."""
    patch.setattr(Broker, "has_kept", lambda *_: True)


def _kafka_13091(patch: pytest.MonkeyPatch) -> None:
    """Who is about to leave the ISR does not count any more."""

    def note(self: Progress) -> None:
        isr = (self.proposed or self.state).isr
        self._counted = tuple(member for member in isr if member.node_id != self.node_id)

    patch.setattr(Progress, "_note_members", note)


def _kafka_6082(patch: pytest.MonkeyPatch) -> None:
    """Whoever writes a partition's state overwrites what others have written."""

    def cas(self: Store, name: str, value: object, version: int) -> int:
        del version
        if name not in self.values:
            raise RefusedError(name)
        return self._set(name, value)

    patch.setattr(Store, "cas", cas)


def _unknown_ends(patch: pytest.MonkeyPatch) -> None:
    """A new leader believes that its followers have everything until they say otherwise."""

    def high_watermark(self: Progress, *more: Any) -> int:
        for member in self._counted:
            follower = self.followers.get(member.node_id)
            if follower is not None and follower.broker_epoch == -1:
                follower.broker_epoch, follower.end_offset = member.epoch, 1 << 60
        return honest(self, *more)

    honest = Progress.high_watermark
    patch.setattr(Progress, "high_watermark", high_watermark)


def _same_epoch_again(patch: pytest.MonkeyPatch) -> None:
    """A leader that comes back leads on in the epoch of its last life."""

    def elect(state: PartitionState, *more: Any, unclean: bool) -> PartitionState:
        elected = honest(state, *more, unclean=unclean)
        is_same = elected.leader == state.leader
        return replace(elected, leader_epoch=state.leader_epoch) if is_same else elected

    honest = election._elect
    patch.setattr(election, "_elect", elect)


_BUGS: tuple[Bug, ...] = (
    _kip_101, _kip_279, _kip_320, _kafka_7128, _kafka_7415, _kafka_13141, _kip_966, _lost_pages, _kafka_13091,
    _kafka_6082, _unknown_ends, _same_epoch_again,
)  # fmt: skip
_FOUND_BY = {
    "_kip_279": 11, "_kip_320": 20, "_kafka_7128": 8, "_kafka_7415": 11, "_kafka_13141": 11, "_unknown_ends": 11,
}  # fmt: skip
"""Seeds to begin with, so that it does not take long."""


@pytest.mark.parametrize("bug", _BUGS, ids=lambda bug: bug.__name__.strip("_").upper().replace("_", "-"))
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    for seed in _seeds(_FOUND_BY.get(bug.__name__, 1)):
        case()
        try:
            _run(seed)
        except AssertionError:
            return
    raise AssertionError(f"{_TRIES} seeds have not found it")


def _seeds(first: int) -> Iterator[int]:
    return chain((first,), range(_TRIES))
