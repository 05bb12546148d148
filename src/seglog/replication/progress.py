"""What the leader of a partition knows of its followers, and what follows from it: the high watermark, and who is in
sync. Pure; times are milliseconds of a clock that does not go back.

Rules of Kafka's ``Partition.scala`` and ``Replica.scala``, and of KIP-320, KIP-497 and KIP-966:

- the high watermark is the smallest end of the log over all who are, or may be just now, in the ISR (a change that is
  on its way counts in both forms, KAFKA-13091), and of those who are about to join;
- it does not advance while the ISR is smaller than ``min.insync.replicas``, nor beyond what a replica has asked for in
  this very epoch: what it had before may yet be cut off;
- a follower joins when it has everything committed and the start of the epoch (KAFKA-7128), and is out when it has not
  had everything for ``replica.lag.time.max.ms``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from seglog.cluster.election import with_isr
from seglog.cluster.model import BrokerRegistration, Member, PartitionState, VersionedState

UNKNOWN: Final = -1


class FetchTimes:
    """When a follower asked us last for anything at all, and the time ``before`` that. In a fetch session a partition
    that has no news is in no request: that its follower is there shows here.

    ``following_ms``: the follower sent its last request after this time. A request that arrives now may have been sent
    long ago; but one that follows an answer of ours in the same session was sent after we had written that answer."""

    __slots__ = ("before_ms", "following_ms", "ms")

    def __init__(self, now_ms: int) -> None:
        self.ms = self.before_ms = now_ms
        self.following_ms = UNKNOWN

    def note(self, now_ms: int) -> None:
        self.before_ms, self.ms = self.ms, now_ms

    def note_following(self, answered_ms: int) -> None:
        """A request has come that the follower sent after our answer of that time."""
        self.following_ms = answered_ms

    def as_it_is(self) -> FetchTimes:
        """What is noted from here on does not count for this one."""
        found = FetchTimes(self.ms)
        found.before_ms = self.before_ms
        found.following_ms = self.following_ms
        return found


class Follower:
    """A replica that fetches from us. ``end_offset`` is the next that it asks for, unknown until it does.

    ``seen_end`` is where our log ended when it last asked for this partition: having come so far, it had everything
    then, and has it for as long as it is heard of and this partition is not in its requests.
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
        """When it last had everything."""
        has_all = self.seen_end != UNKNOWN and self.end_offset >= self.seen_end
        return max(self._caught_up_ms, self.heard.ms) if has_all else self._caught_up_ms

    @property
    def fetched_ms(self) -> int:
        return self.heard.ms

    def fetched(
        self, offset: int, log_start_offset: int, broker_epoch: int, log_end: int, now_ms: int, heard: FetchTimes | None
    ) -> None:
        """``heard`` is that of its session, which knows already that it has asked now."""
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


class Progress:
    """Of one leader in one epoch, from its first moment on."""

    def __init__(
        self, node_id: int, partition: str, stored: VersionedState, epoch_start: int, now_ms: int, *, lag_max_ms: int
    ) -> None:
        """``partition`` as `offline_name` has it; ``epoch_start`` is where the log ended when this epoch began."""
        self.node_id = node_id
        self._partition = partition
        self.state, self.version = stored
        self.lag_max_ms = lag_max_ms
        self.proposed: PartitionState | None = None
        self.begin(epoch_start, now_ms)

    def begin(self, epoch_start: int, now_ms: int) -> None:
        """Know nothing of the followers; also when we were in doubt for a while, and lead on in the same epoch. What we
        had proposed may be written yet, and counts."""
        self.epoch_start = epoch_start
        self.followers = {node: Follower(now_ms) for node in self.state.replicas if node != self.node_id}
        self._note_members()

    def _note_members(self) -> None:
        """Who counts for the high watermark: the union of both forms of the ISR while a change is on its way."""
        members = set(self.state.isr)
        if self.proposed is not None:
            members.update(self.proposed.isr)
        self._counted = tuple(member for member in members if member.node_id != self.node_id)

    @property
    def has_enough(self) -> bool:
        """Whether anything can be committed now (else a produce request with acks=all is refused)."""
        return len(self.state.isr) >= self.state.needed

    # While the metadata store is away

    def may_commit_unconfirmed(self, now_ms: int, silence_ms: int) -> bool:
        """Whether committing is safe although another leader may have been elected that we have not heard of.

        Whoever was elected comes from the ISR, as written or as proposed, and no longer fetches from us: without its
        fetch the high watermark stands still. That fences nothing if we are the whole ISR, unless nobody else has a
        replica. If no member has fetched for ``silence_ms``, all may follow another leader, and so should clients.
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
        """Whether every other member of the ISR, as written and as proposed, followed us after ``asked_ms``: then no
        other leader had committed anything by that time."""
        for member in self._counted:
            follower = self.followers.get(member.node_id)
            if follower is None or follower.broker_epoch != member.epoch or follower.heard.following_ms <= asked_ms:
                return False
        return True

    def changed(self, stored: VersionedState, now_ms: int) -> None:
        """The state was written, by us or by the controller, and we still lead in the same epoch."""
        if stored.version < self.version:
            return
        self.state, self.version = stored
        self.proposed = None
        for node in self.state.replicas:
            if node != self.node_id and node not in self.followers:
                self.followers[node] = Follower(now_ms)
        for node in list(self.followers):
            if node not in self.state.replicas:
                del self.followers[node]
        self._note_members()

    def unfollowed(self, heard: FetchTimes) -> None:
        """Who is heard of there asks for this partition no more: that it still asks for others says nothing here."""
        for follower in self.followers.values():
            if follower.heard is heard:
                follower.heard = heard.as_it_is()

    # The high watermark

    def high_watermark(
        self, current: int, flushed_end: int, brokers: Mapping[int, BrokerRegistration], now_ms: int
    ) -> int:
        """What the high watermark is now; it never goes back in an epoch. ``flushed_end`` is where our own log ends, as
        far as that may be told (`Log.flushed_end`)."""
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
        """A high watermark that runs ahead of a follower which keeps up would never let it join."""
        return (
            self._may_join(node, follower, brokers)
            and follower.end_offset >= self.epoch_start
            and all(member.node_id != node for member in self._counted)
            and now_ms - follower.caught_up_ms <= self.lag_max_ms
        )

    def _may_join(self, node: int, follower: Follower, brokers: Mapping[int, BrokerRegistration]) -> bool:
        """Whether the broker is there, in the life in which it last fetched, and stays, and its disk works: else the
        controller would take out whom we take in, again and again, while nothing is committed."""
        broker = brokers.get(node)
        return (
            broker is not None
            and not broker.is_stopping
            and follower.broker_epoch == broker.epoch
            and self._partition not in broker.offline
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
        """The state with the ISR that should be, to be written at `version`; None if it is as it is, or if a change is
        on its way already. From here on both forms count, until `changed` or `refused`. A leader exists only where its
        log is open, so the first proposal also tells the cluster that the partition `is_new` no more.

        Without ``shrinks`` nobody leaves. A follower that has everything committed joins, also when it has not had
        everything for long: it would leave and join with each of its fetches.
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
        """What was proposed was certainly not written. If that is not certain, do nothing: `changed` will tell."""
        self.proposed = None
        self._note_members()
