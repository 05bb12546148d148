"""Bugs of consumer groups, put in on purpose. docs/replication.md has a table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from seglog.coordinators import coordinator_shard
from seglog.coordinators.consumer import membership, offset_checks, reconciliation
from seglog.coordinators.consumer.decision import Decision
from seglog.coordinators.consumer.group import ConsumerGroup
from seglog.coordinators.consumer.member import JOINS, ConsumerMember
from seglog.coordinators.consumer.messages import ConsumerHeartbeat
from seglog.coordinators.consumer_records import CurrentAssignmentKey, MemberKey, MemberTargetKey
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import CoordinatorShard
from seglog.coordinators.group_context import GroupContext
from seglog.coordinators.group_records import GroupRecord, OffsetCommitKey
from seglog.core.error_codes import ErrorCode
from tests.simulation.cluster.scenario import Scenario

Patch = pytest.MonkeyPatch


class Bug(NamedTuple):
    """``seed`` is one that finds it soon, in ``scenario``, with ``rates`` of faults where they are not the seed's own,
    and with ``classics`` of the classic protocol. ``is_slow``: left to `make test-long`."""

    name: str
    plant: Callable[[Patch], None]
    seed: int = 0
    scenario: Scenario | None = None
    rates: Mapping[str, float] = MappingProxyType({})
    classics: float | None = 0.0
    is_slow: bool = False


def _given_early(patch: Patch) -> None:
    """A partition is given before its former owner has confirmed that it gave it up."""
    patch.setattr(ConsumerGroup, "is_held", lambda *_: False)
    patch.setattr(ConsumerGroup, "check", lambda _: None)  # members are to notice


def _confirmed_at_once(patch: Patch) -> None:
    """A heartbeat that names no partitions confirms a revocation."""
    honest: Callable[..., ConsumerMember] = reconciliation.reconcile

    def reconcile(*arguments: Any, **more: Any) -> ConsumerMember:
        *others, owned = arguments
        return honest(*others, {} if owned is None else owned, **more)

    patch.setattr(membership, "reconcile", reconcile)


def _never_repeated(patch: Patch) -> None:
    """A heartbeat whose answer was lost is fenced."""

    def check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
        if request.epoch not in (JOINS, member.epoch):
            raise CoordinatorError(ErrorCode.FENCED_MEMBER_EPOCH, "another epoch")

    patch.setattr(membership, "_check_epoch", check_epoch)


def _former_owner_commits(patch: Patch) -> None:
    """A member of an older epoch may commit what it has lost."""
    patch.setattr(offset_checks.CommitCheck, "partition", lambda *_: None)


def _anyone_commits(patch: Patch) -> None:
    """Who is not a member any more may commit."""
    honest = offset_checks.check_commit

    def check_commit(*arguments: Any, **more: Any) -> offset_checks.CommitCheck:
        try:
            return honest(*arguments, **more)
        except CoordinatorError:
            return offset_checks.CommitCheck(None, -1, knows_stale=True)

    patch.setattr(coordinator_shard, "check_commit", check_commit)


def _forgotten(*kinds: type) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        def replay(self: CoordinatorShard, entry: GroupRecord, record: int, producer_id: int = -1) -> None:
            if not isinstance(entry[0], kinds):
                honest(self, entry, record, producer_id)

        honest = CoordinatorShard.replay
        patch.setattr(CoordinatorShard, "replay", replay)

    return plant


def _answered_uncommitted(patch: Patch) -> None:
    """A heartbeat that changes nothing is answered before what it says is committed."""
    patch.setattr(GroupContext, "uncommitted_end", lambda _: 0)


def _session_forgotten(patch: Patch) -> None:
    """A new coordinator waits forever for members that have died in the meantime."""
    patch.setattr(CoordinatorShard, "start_timers", lambda *_: None)


def _session_cut_short(patch: Patch) -> None:
    """A member is removed before its session is over."""

    def set_timers(self: Decision, changes: Any) -> None:
        honest(self, [one._replace(timeout=one.timeout and one.timeout // 4) for one in changes])

    honest = Decision.set_timers
    patch.setattr(Decision, "set_timers", set_timers)


_QUIET = dict.fromkeys(
    (
        *("crash_every", "power_every", "pause_every", "cut_every", "expire_every", "stop_every", "disk_every"),
        *("away_every", "fill_every", "install_every", "configure_every", "reassign_every", "blackout_every"),
        *("coordinators_every", "clock_every", "loss", "slow", "store_lost", "store_slow", "watch_slow", "disk_slow"),
    ),
    0.0,
)
_MOVES = _QUIET | {"coordinators_every": 700}
_LOSES = _QUIET | {"loss": 0.02}
_SLOW = _QUIET | {"slow": 0.05}
_THREE = Scenario(partitions=4, coordinators=True)

BUGS = (
    Bug("given-early", _given_early, scenario=_THREE, rates=_QUIET),
    Bug("confirmed-at-once", _confirmed_at_once, scenario=_THREE, rates=_QUIET, is_slow=True),
    Bug("never-repeated", _never_repeated, seed=1, scenario=_THREE, rates=_LOSES),
    Bug("former-owner-commits", _former_owner_commits, seed=8, scenario=_THREE, rates=_QUIET),
    Bug("anyone-commits", _anyone_commits, seed=1, scenario=_THREE, rates=_QUIET, is_slow=True),
    Bug("target-forgotten", _forgotten(MemberTargetKey), seed=20, scenario=_THREE, rates=_MOVES),
    Bug("members-forgotten", _forgotten(MemberKey, CurrentAssignmentKey), seed=1, scenario=_THREE, rates=_MOVES),
    Bug("offsets-forgotten", _forgotten(OffsetCommitKey), seed=1, scenario=_THREE, rates=_MOVES, is_slow=True),
    Bug("answered-uncommitted", _answered_uncommitted, seed=7, classics=None, is_slow=True),
    Bug("sessions-forgotten", _session_forgotten, seed=1, scenario=_THREE, rates=_MOVES, is_slow=True),
    Bug("sessions-cut-short", _session_cut_short, scenario=_THREE, rates=_SLOW, is_slow=True),
)
