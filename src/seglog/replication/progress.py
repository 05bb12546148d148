"""A leader's view of its followers, from which the high watermark and the ISR follow. Pure; times are milliseconds of a
monotonic clock.

The rules are those of Kafka's ``Partition.scala`` and ``Replica.scala``, and of KIP-320, KIP-497 and KIP-966:

- The high watermark is the smallest log end of all members of the ISR, of those of a proposed ISR (KAFKA-13091), and
  of followers that are about to join.
- It does not advance while the ISR is smaller than ``min.insync.replicas``, nor beyond an offset that a replica has
  fetched in this epoch: what the replica had before may still be truncated.
- A follower joins when it has everything committed and the start of the epoch (KAFKA-7128). It leaves when it has not
  caught up for ``replica.lag.time.max.ms``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from seglog.cluster.election import with_isr
from seglog.cluster.model import BrokerRegistration, Member, PartitionState, VersionedState

UNKNOWN: Final = -1


class FetchTimes:
    """The times of a follower's last request for any partition, and of the one ``before``. A fetch session does not
    name partitions without news; these times show that the follower is still alive.

    ``following_ms``: the follower sent its last request after this time. A request may have been sent long before it
    arrives, but one that follows an answer in the same session was sent after that answer was written.
    """

    __slots__ = ("before_ms", "following_ms", "ms")

    def __init__(self, now_ms: int) -> None:
        self.ms = self.before_ms = now_ms
        self.following_ms = UNKNOWN

    def note(self, now_ms: int) -> None:
        self.before_ms, self.ms = self.ms, now_ms

    def note_following(self, answered_ms: int) -> None:
        """A request has arrived that the follower sent after the answer of that time."""
        self.following_ms = answered_ms

    def as_it_is(self) -> FetchTimes:
        """Return a copy that later requests do not change."""
        found = FetchTimes(self.ms)
        found.before_ms = self.before_ms
        found.following_ms = self.following_ms
        return found


class Follower:
    """A replica that fetches from this leader. ``end_offset`` is the next offset that it fetches, unknown before its
    first fetch.

    ``seen_end`` is the leader's log end when the follower last fetched this partition. A follower that has reached it
    had everything then, and still has while its session is alive and does not name the partition.
    """

    __slots__ = ("_caught_up_ms", "broker_epoch", "end_offset", "heard", "log_start_offset", "seen_end")

    def __init__(self, now_ms: int) -> None:
        self.end_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.broker_epoch = UNKNOWN
        self.seen_end = UNKNOWN
        self.heard = FetchTimes(now_ms)
        self._caught_up_ms = now_ms

    @property
    def caught_up_ms(self) -> int:
        """The time when it last had everything."""
        has_all = self.seen_end != UNKNOWN and self.end_offset >= self.seen_end
        return max(self._caught_up_ms, self.heard.ms) if has_all else self._caught_up_ms

    @property
    def fetched_ms(self) -> int:
        return self.heard.ms

    def fetched(
        self, offset: int, log_start_offset: int, broker_epoch: int, log_end: int, now_ms: int, heard: FetchTimes | None
    ) -> None:
        """Note a fetch. ``heard`` has the times of its session, which include this request."""
        if heard is None:
            self.heard.note(now_ms)
        else:
            self.heard = heard
        if offset >= log_end:
            self._caught_up_ms = max(self._caught_up_ms, now_ms)
        elif self.seen_end != UNKNOWN and offset >= self.seen_end:
            self._caught_up_ms = max(self._caught_up_ms, self.heard.before_ms)
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.seen_end = log_end

    def unfollowed(self) -> None:
        """Later requests of its session say nothing about this partition."""
        self.heard = self.heard.as_it_is()


class Progress:
    """The progress of one leader in one epoch, from its start."""

    def __init__(
        self, node_id: int, partition: str, stored: VersionedState, epoch_start: int, now_ms: int, *, lag_max_ms: int
    ) -> None:
        """``partition`` as in `offline_name`; ``epoch_start`` is the log end when this epoch began."""
        self.node_id = node_id
        self._partition = partition
        self._take(stored)
        self.lag_max_ms = lag_max_ms
        self.proposed: PartitionState | None = None
        self.begin(epoch_start, now_ms)

    def _take(self, stored: VersionedState) -> None:
        self.state, self.version = stored
        self.has_enough = len(self.state.isr) >= self.state.needed
        """Whether anything can be committed; if not, produce requests with acks=all are refused."""

    def begin(self, epoch_start: int, now_ms: int) -> None:
        """Forget the followers. A leader that was in doubt and leads on in the same epoch does so too; what it had
        proposed may still be written, and counts."""
        self.epoch_start = epoch_start
        self.followers = {node: Follower(now_ms) for node in self.state.replicas if node != self.node_id}
        self._note_members()

    def _note_members(self) -> None:
        """Collect the members that count for the high watermark: while a change is being written, those of both
        ISRs."""
        members = set(self.state.isr)
        if self.proposed is not None:
            members.update(self.proposed.isr)
        self._counted = tuple(member for member in members if member.node_id != self.node_id)

    # While the metadata store is away

    def may_commit_unconfirmed(self, now_ms: int, silence_ms: int) -> bool:
        """Whether committing is safe although another leader may have been elected unnoticed.

        A new leader comes from the ISR as written or as proposed, and no longer fetches from this one; without its
        fetches the high watermark stands still. That fences nothing if this broker is the whole ISR, unless it has the
        only replica. If no member has fetched for ``silence_ms``, all may follow another leader, and clients should
        find it.
        """
        states = (self.state,) if self.proposed is None else (self.state, self.proposed)
        if any(len(state.isr) < state.needed for state in states):
            return False
        if all(state.replicas == (self.node_id,) for state in states):
            return True
        return any(
            follower.broker_epoch == member.epoch and now_ms - follower.fetched_ms <= silence_ms
            for member in self.state.isr
            if (follower := self.followers.get(member.node_id)) is not None
        )

    def is_followed_since(self, asked_ms: int) -> bool:
        """Whether every other member of the ISR, as written and as proposed, has followed this leader after
        ``asked_ms``: then no other leader had committed anything by that time."""
        for member in self._counted:
            follower = self.followers.get(member.node_id)
            if follower is None or follower.broker_epoch != member.epoch or follower.heard.following_ms <= asked_ms:
                return False
        return True

    def changed(self, stored: VersionedState, now_ms: int) -> None:
        """The state was written, by this leader or by the controller, and this broker still leads in the same epoch."""
        if stored.version < self.version:
            return
        self._take(stored)
        self.proposed = None
        for node in self.state.replicas:
            if node != self.node_id and node not in self.followers:
                self.followers[node] = Follower(now_ms)
        for node in list(self.followers):
            if node not in self.state.replicas:
                del self.followers[node]
        self._note_members()

    def unfollowed(self, heard: FetchTimes) -> None:
        """The follower of ``heard`` no longer fetches this partition: its fetches of others say nothing about this
        one."""
        for follower in self.followers.values():
            if follower.heard is heard:
                follower.unfollowed()

    # The high watermark

    def high_watermark(
        self, current: int, flushed_end: int, brokers: Mapping[int, BrokerRegistration], now_ms: int
    ) -> int:
        """Return the high watermark; it never falls in an epoch. ``flushed_end`` is this log's end as far as it may be
        acknowledged (`Log.flushed_end`)."""
        if not self.has_enough:
            return current
        found = flushed_end
        for member in self._counted:
            follower = self.followers.get(member.node_id)
            if follower is None or follower.broker_epoch != member.epoch:
                return current
            found = min(found, follower.end_offset)
        for node, follower in self.followers.items():
            if follower.end_offset < found and self._is_about_to_join(node, follower, brokers, now_ms):
                found = follower.end_offset
        return max(current, found)

    def _is_about_to_join(
        self, node: int, follower: Follower, brokers: Mapping[int, BrokerRegistration], now_ms: int
    ) -> bool:
        """Whether the high watermark waits for this follower: a follower that keeps up could otherwise never join."""
        return (
            self._may_join(node, follower, brokers)
            and follower.end_offset >= self.epoch_start
            and all(member.node_id != node for member in self._counted)
            and now_ms - follower.caught_up_ms <= self.lag_max_ms
        )

    def _may_join(self, node: int, follower: Follower, brokers: Mapping[int, BrokerRegistration]) -> bool:
        """Whether the broker is registered in the epoch of its last fetch, is not stopping, and its disk works.
        Otherwise the controller would remove it again, and again, and nothing would be committed meanwhile."""
        broker = brokers.get(node)
        return (
            broker is not None
            and not broker.is_stopping
            and follower.broker_epoch == broker.epoch
            and not broker.has_offline(self._partition)
        )

    # The ISR

    def propose(
        self,
        high_watermark: int,
        log_end: int,
        brokers: Mapping[int, BrokerRegistration],
        now_ms: int,
        *,
        shrinks: bool = True,
    ) -> PartitionState | None:
        """Return the state with the right ISR, to be written at `version`; None if it is right, or if a change is being
        written. From then on both ISRs count, until `changed` or `refused`. A leader exists only where its log is open,
        so its first proposal also clears ``is_new``.

        Without ``shrinks`` no member leaves. A follower joins if it has everything committed, even if it has not had
        everything for long; otherwise it would leave and join with each fetch.
        """
        if self.proposed is not None:
            return None
        isr = [member for member in self.state.isr if not (shrinks and self._is_behind(member, log_end, now_ms))]
        inside = {member.node_id for member in self.state.isr}
        for node, follower in self.followers.items():
            if (
                node not in inside
                and self._may_join(node, follower, brokers)
                and follower.end_offset >= max(high_watermark, self.epoch_start)
                and now_ms - follower.fetched_ms <= self.lag_max_ms
            ):
                isr.append(Member(node, follower.broker_epoch))
        if tuple(isr) != self.state.isr:
            self.proposed = replace(with_isr(self.state, isr, brokers), is_new=False, left=())
        elif self.state.is_new:
            self.proposed = replace(self.state, is_new=False)
        else:
            return None
        self._note_members()
        return self.proposed

    def _is_behind(self, member: Member, log_end: int, now_ms: int) -> bool:
        if member.node_id == self.node_id:
            return False
        follower = self.followers[member.node_id]
        has_all = follower.end_offset == log_end and follower.broker_epoch == member.epoch
        return not has_all and now_ms - follower.caught_up_ms > self.lag_max_ms

    def refused(self) -> None:
        """The proposal was certainly not written. If that is not certain, do nothing: `changed` follows."""
        self.proposed = None
        self._note_members()
