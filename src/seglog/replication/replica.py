"""This broker's replica of a partition: it leads or follows.

One writer: everything runs on the broker's event loop, and between two awaits nothing else does, so an append is atomic
without a lock of its own. Nothing here waits or reads a clock: times are arguments, in milliseconds of a monotonic
clock. Nothing here fsyncs: a change of the log that must be durable first is returned, or is `Replica.wanted`, and
`seglog.replication.log_changes` carries it out in a thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from seglog.cluster.election import with_evidence
from seglog.cluster.model import (
    NO_LEADER,
    BrokerRegistration,
    Evidence,
    Member,
    PartitionState,
    VersionedState,
    offline_name,
)
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import (
    CutRefusedError,
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    SeglogError,
    UnexpectedAppendOffsetError,
    UnknownLeaderEpochError,
)
from seglog.core.types import MAX_INT32, NO_EPOCH, Buffer, TopicPartition
from seglog.records import any_magic
from seglog.records.batch import entries
from seglog.replication.progress import FetchTimes, Progress
from seglog.replication.waiters import GrowthListener
from seglog.storage.directory.log_changes import BeginEpoch, Cut, LogChange, MoveStart, StartAt
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.loss_evidence import LogEvidence
from seglog.storage.log.admit import Origin
from seglog.storage.log.epochs import EpochEnd
from seglog.storage.log.finished_segment import FinishedSegment
from seglog.storage.log.log import AppendResult, Log
from seglog.storage.log.reads import LogSlice, UpTo

Brokers = Mapping[int, BrokerRegistration]
NOT_PUBLISHED: Final = memoryview(array("q", (0, 0)))
"""Where a replica that is not published stores its high watermark."""
COMMITTED: Final = 0
KAFKA_STORAGE_ERROR: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)
NOT_LEADER_OR_FOLLOWER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class ReplicaFetch(NamedTuple):
    """A follower's fetch. ``leader_epoch`` is the epoch in which it follows, ``last_epoch`` that of its last batch;
    offsets are its log's end and start. ``min_one``: return at least one batch, however large."""

    node_id: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int
    max_bytes: int
    min_one: bool = True
    heard: FetchTimes | None = None


class SavedCut(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) that were truncated, and the path of their copy."""

    start: int
    end: int
    path: str


class ReplicaAnswer(NamedTuple):
    """The answer to a `ReplicaFetch`: a slice up to the log's end, or the point of divergence."""

    diverging: EpochEnd | None
    records: LogSlice | None
    high_watermark: int
    log_start_offset: int


class ReplicaListener:
    """Hears of a broker's replicas, on its event loop. This one acts on a due flush only."""

    def appended(self, replica: Replica) -> None:
        """The leader's log has grown, and its high watermark may follow."""

    def committed(self, replica: Replica) -> None:
        """The high watermark has moved."""

    def flush_due(self, replica: Replica) -> None:
        """``flush.messages`` asks for a flush. Flush the log, perhaps in a thread, and then call `Replica.flushed`.
        Until then nothing above `Log.flushed_end` is acknowledged, committed or shown."""
        replica.log.flush()
        replica.flushed()

    def check_session(self) -> None:
        """`Replica.doubt` or `Replica.resign` is due if the metadata store has not confirmed the broker's session for
        too long, or says that it has ended."""

    def damaged(self, replica: Replica, error: SeglogError) -> None:
        """The replica cannot be served: its log is damaged."""

    def cut_refused(self, replica: Replica) -> None:
        """The replica does not truncate at ``refused_cut``, as its leader asks."""

    def cut_saved(self, replica: Replica, saved: SavedCut) -> None:
        """A copy was made before a truncation."""


class Replica:
    """It leads, or follows ``leader``, in ``leader_epoch``, as the metadata store says (`apply`).

    While the broker's session is in doubt (`doubt`), a leader commits only if that is safe whichever broker was elected
    (`Progress.may_commit_unconfirmed`). Otherwise it ``is_suspended``: it answers its followers and no client.

    ``followers`` are called when the log's end grows, with the number of bytes, and with 0 when only the high watermark
    moves. ``waiters`` are called when consumers can see more.

    A follower never truncates below its high watermark unless an unclean election began an epoch after those records
    were written. ``refused_cut`` is the offset at which its leader wants it to (-1: none).

    Appends, records and bytes since the start are counted for `seglog.broker.metrics`.

    A state that needs a change of the log is taken over in two steps (docs/decisions/0029). `apply` ends the old role,
    and ``wanted`` is the change. Once it is carried out, `apply` is called again with the state that the store has by
    then, finds the log as it must be, and takes it over. While the replica ``is_changing``, no state is taken over, no
    answer of a leader, and no evidence is reported.

    The log of a broker that is alone moves its high watermark itself (`Log.hw_follows_end`): its listener is not told
    `ReplicaListener.appended`, and an epoch begins only with its first record.
    """

    __slots__ = (
        "_former",
        "_is_finishing",
        "_is_waiting",
        "_listener",
        "_published",
        "_unclean_epoch",
        "_unseen",
        "appends",
        "bytes_in",
        "bytes_out",
        "directory",
        "followers",
        "in_doubt",
        "is_changing",
        "is_suspended",
        "leader",
        "leader_epoch",
        "log",
        "messages_in",
        "progress",
        "refused_cut",
        "topic_id",
        "topic_partition",
        "version",
        "waiters",
        "wanted",
    )

    def __init__(
        self,
        directory: LogDir,
        topic_partition: TopicPartition,
        topic_id: UUID,
        log: Log,
        *,
        listener: ReplicaListener | None = None,
    ) -> None:
        log.defer_flushes()
        self._listener = listener or ReplicaListener()
        self._unseen = 0
        """Bytes appended since the high watermark moved."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.waiters: dict[GrowthListener, None] = {}  # ordered, so that a simulation can be repeated
        self._published = NOT_PUBLISHED
        self.in_doubt = False
        """Another broker may lead the partition, and the metadata store cannot be asked."""
        self.appends = self.messages_in = self.bytes_in = self.bytes_out = 0
        self.directory = directory
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.version = -1
        self.progress: Progress | None = None
        self.followers: dict[GrowthListener, None] = {}
        self.refused_cut = -1
        self._unclean_epoch = NO_EPOCH
        self._former: Progress | None = None
        """The progress at the time of `resign`, if a proposed ISR was being written."""
        self.is_suspended = self._is_finishing = False
        self.wanted: LogChange | None = None
        """The log must be changed before the state is taken over."""
        self.is_changing = False
        self._is_waiting = False
        """``leader_epoch`` is not taken over yet."""

    @property
    def leads(self) -> bool:
        """Whether it accepts writes and reads of the latest offsets."""
        return self.progress is not None and not self.is_suspended

    @property
    def is_placed(self) -> bool:
        """Whether it leads or follows, so that its visible records are a prefix of the committed ones."""
        return self.leader != NO_LEADER and not self.is_suspended

    @property
    def knows_committed(self) -> bool:
        """Whether the high watermark is exact. That of a new leader may lag until its followers have reached the start
        of its epoch."""
        return self.progress is not None and self.log.high_watermark >= self.progress.epoch_start

    def check_leads(self) -> None:
        """Raise `NotLeaderError` if this broker does not lead the partition, `LogDirOfflineError` if its disk has
        failed."""
        self._check_leads()
        if self.is_suspended:
            raise NotLeaderError(self._why_suspended)

    # Roles

    def apply(self, stored: VersionedState, me: Member, brokers: Brokers, now_ms: int, *, lag_max_ms: int) -> bool:
        """Take over a state of the store. Return whether the leader or its epoch has changed. If there is a change
        ``wanted`` then, the replica has left its former role and has no other yet.

        Lead only if the ISR contains this broker in its current epoch: a state from before the start is about an
        earlier one.
        """
        state, version = stored
        if version <= self.version or self.is_changing:
            return False
        self._unclean_epoch = state.unclean_epoch
        leads = state.leader == me.node_id and me in state.isr
        is_new = self._is_waiting or state.leader_epoch != self.leader_epoch or leads != (self.progress is not None)
        if is_new:
            was_waiting = self._is_waiting and self.leader_epoch == state.leader_epoch
            self._leave(state)
            self.wanted = self._needed(leads=leads)
            if self.wanted is not None:
                self.wake()
                return not was_waiting
        self.version = version
        self._suspend(is_suspended=self.in_doubt and leads)  # until `weigh` has decided
        if not is_new:
            if self.progress is not None:
                self.progress.changed(stored, now_ms)
                self.advance(brokers, now_ms)
            else:
                self.leader = _other(state.leader, me)
            return False
        self._is_waiting = False
        if leads:
            self._lead(stored, me, now_ms, lag_max_ms=lag_max_ms)
            self.advance(brokers, now_ms)
        else:
            self.leader = _other(state.leader, me)
            self._show()
        self.wake()
        return True

    def _leave(self, state: PartitionState) -> None:
        """Leave the former role: appends, answers of the former leader and fetches of followers are refused."""
        self.progress = None
        self.leader = NO_LEADER
        self.leader_epoch = state.leader_epoch
        self.refused_cut = -1
        self._is_waiting = True

    def _needed(self, *, leads: bool) -> LogChange | None:
        """The change that the log needs before the new role. A leader's epoch is on the disk before it serves any
        request (KAFKA-7415), unless it is epoch 0 of a new log; a follower's log has no more than what it may ask
        with."""
        log, epoch = self.log, self.leader_epoch
        if leads:
            has_epoch = log.hw_follows_end or log.has_epoch(epoch) or log.begin_first_epoch(epoch)
            return None if has_epoch else BeginEpoch(self.topic_partition, epoch)
        return self._cut(log.epochs.start_of_following(log.high_watermark, log.log_end_offset))

    def begin_change(self) -> None:
        """A change is under way: `seglog.replication.log_changes`."""
        self.is_changing, self.wanted = True, None

    def end_change(self, change: LogChange, *, saved: str | None) -> None:
        """The change was carried out, or has failed; ``saved`` is the path of the copy that a `Cut` made."""
        self.is_changing = False
        if isinstance(change, Cut) and saved is not None:
            self._listener.cut_saved(self, SavedCut(change.start, change.end, saved))
        self._show()

    def _lead(self, stored: VersionedState, me: Member, now_ms: int, *, lag_max_ms: int) -> None:
        self.leader = me.node_id
        end, former = self.log.log_end_offset, self._former
        self._former = None
        if former is not None and former.proposed is not None and (former.state, former.version) == stored:
            former.begin(end, now_ms)
            self.progress = former
        else:
            name = offline_name(self.topic_id, self.topic_partition.partition)
            self.progress = Progress(me.node_id, name, stored, end, now_ms, lag_max_ms=lag_max_ms)
        if self.log.needs_flush:
            self._listener.flush_due(self)

    def resign(self) -> None:
        """Neither lead nor follow until the store says again who leads: the session is in doubt."""
        progress = self.progress
        if progress is not None and progress.proposed is not None:
            self._former = progress
        self.progress = None
        self.leader = NO_LEADER
        self.version = -1
        self.in_doubt = self.is_suspended = False
        self.wake()

    def forget_version(self) -> None:
        """Take the next state whatever its version is."""
        self.version = -1

    def doubt(self) -> None:
        """The store has not confirmed the session for too long; `weigh` decides what a leader may still do."""
        self.in_doubt = True

    def weigh(self, now_ms: int, *, unclean: bool, silence_ms: int) -> bool:
        """In doubt, decide whether to serve clients as the leader. Return whether that has changed. Call it again as
        time passes. ``unclean``: any replica may be elected, so nothing fences this leader."""
        progress = self.progress
        if progress is None:
            return False
        may_commit = not unclean and progress.may_commit_unconfirmed(now_ms, silence_ms)
        return self._suspend(is_suspended=not may_commit)

    def check_doubt(self) -> bool:
        """Return whether the session is in doubt at this moment. A timer sets ``in_doubt``. It fires late after a pause
        of the process: requests that came meanwhile are handled first."""
        self._listener.check_session()
        return self.in_doubt

    def trust(self) -> bool:
        """The session is certain again, and was so all the time. Return whether clients are served again."""
        self.in_doubt = False
        return self._suspend(is_suspended=False)

    def _suspend(self, *, is_suspended: bool) -> bool:
        if is_suspended == self.is_suspended:
            return False
        self.is_suspended = is_suspended
        if is_suspended:
            self.wake()
        return True

    @property
    def _why_suspended(self) -> str:
        return (
            f"{self.topic_partition} may be led by another broker: the metadata store has not confirmed this one, and "
            f"too few in-sync replicas fetch from it"
        )

    def report(self, stored: VersionedState, me: Member, kept: LogEvidence) -> PartitionState | None:
        """Return the state with this replica's evidence, to be written by compare-and-set. None if there is nothing to
        report: the partition has a leader whose log this replica accepts, the state has the evidence already, or the
        replica has not taken the state over yet."""
        state, version = stored
        is_asked = state.leader == NO_LEADER or (self.refused_cut >= 0 and me.node_id not in state.isr_nodes)
        if not is_asked or version != self.version or self.is_changing or me.node_id not in state.replicas:
            return None
        evidence = self._evidence(me, kept)
        return None if state.evidence_of(me.node_id) == evidence else with_evidence(state, evidence)

    def _evidence(self, me: Member, kept: LogEvidence) -> Evidence:
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        return Evidence(
            node_id=me.node_id,
            epoch=me.epoch,
            directory=kept.directory,
            last_epoch=log.epochs.epoch_for_offset(end - 1) if start < end else log.epochs.latest,
            start=start,
            flushed=log.recovery_point,
            high_watermark=log.high_watermark,
            end=end,
            made=kept.made,
            kept_since=kept.kept_since,
            refused_cut=self.refused_cut,
        )

    def _check_leads(self) -> Progress:
        if self.progress is None:
            self.directory.health.check()
            raise NotLeaderError(f"{self.topic_partition} has another leader")
        return self.progress

    # Leader epochs

    def check_epoch(self, current_epoch: int) -> None:
        """Refuse a client whose metadata is older or newer than this replica's (KIP-320)."""
        if current_epoch == NO_EPOCH or current_epoch == self.leader_epoch:
            return
        if current_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(f"{self.topic_partition} has leader epoch {self.leader_epoch}")
        raise UnknownLeaderEpochError(f"{self.topic_partition} has leader epoch {self.leader_epoch}")

    def end_offset_for(self, epoch: int) -> EpochEnd:
        """Return the end of the largest epoch at or below ``epoch`` (KIP-101)."""
        if epoch == self.leader_epoch:
            return EpochEnd(epoch=epoch, end_offset=self.log.log_end_offset)
        return self.log.end_offset_for_epoch(epoch)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Return where the reader's log diverges from this one, or None (KIP-595)."""
        if last_fetched_epoch == NO_EPOCH:
            return None
        end = self.end_offset_for(last_fetched_epoch)
        if end.epoch == NO_EPOCH or end.end_offset < 0:
            raise OffsetOutOfRangeError(f"{self.topic_partition} does not know epoch {last_fetched_epoch}")
        return end if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset else None

    # Leading

    def append(
        self,
        records: Buffer,
        origin: Origin = Origin.CLIENT,
        *,
        needs_all: bool = False,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Append batches as the leader; with ``needs_all`` only if enough replicas are in sync to commit them. Raises
        what `Log.append` raises, `NotLeaderError` and `NotEnoughReplicasError`."""
        progress = self.progress or self._check_leads()
        if progress.state.is_new or self._is_finishing or self.in_doubt or (needs_all and not progress.has_enough):
            self._check_may_append(progress, needs_all=needs_all)
        self.appends += 1
        appended = self.log.append(
            records, leader_epoch=self.leader_epoch, origin=origin, transaction_version=transaction_version
        )
        self._appended(appended, len(records))
        return appended

    def append_segment(self, segment: FinishedSegment) -> AppendResult:
        """Take over a finished segment as the leader, if enough replicas are in sync to commit it. Raises what
        `Log.append_segment` raises, `NotLeaderError` and `NotEnoughReplicasError`."""
        self._check_may_append(self._check_leads(), needs_all=True)
        self.appends += 1
        appended = self.log.append_segment(segment, self.leader_epoch)
        if not appended.duplicate:
            self._appended(appended, segment.size)
        return appended

    def _check_may_append(self, progress: Progress, *, needs_all: bool) -> None:
        if progress.state.is_new:
            raise NotLeaderError(
                f"{self.topic_partition} is new: the metadata store has not confirmed yet that its leader may append"
            )
        if self._is_finishing:
            raise NotLeaderError(f"{self.topic_partition}: this broker stops")
        if self.in_doubt:
            self._check_unconfirmed(needs_all=needs_all)
        if needs_all and not progress.has_enough:
            state = progress.state
            raise NotEnoughReplicasError(
                f"{self.topic_partition} has {len(state.isr)} in-sync replicas, and needs {state.needed}"
            )

    def _appended(self, appended: AppendResult, size: int) -> None:
        self.messages_in += appended.last_offset - appended.first_offset + 1
        self.bytes_in += size
        self._grown(size)

    def stop_appending(self) -> None:
        """Append nothing more for clients and coordinators: the broker stops."""
        self._is_finishing = True

    @property
    def may_still_commit(self) -> bool:
        """Whether it leads, and followers or a flush can commit what is appended and not committed yet."""
        progress, log = self.progress, self.log
        return (
            progress is not None
            and not self.is_suspended
            and not log.has_failed
            and log.high_watermark < log.log_end_offset
            and progress.has_enough
        )

    def _check_unconfirmed(self, *, needs_all: bool) -> None:
        self.check_leads()
        if not needs_all:
            raise NotLeaderError(
                f"{self.topic_partition} may be led by another broker: until the metadata store has confirmed this one "
                f"it accepts only writes with acks=all"
            )

    def _grown(self, size: int) -> None:
        """The log has grown by ``size`` bytes: show them, or see to what must come first."""
        self._unseen += size
        log = self.log
        needs_flush = log.needs_flush
        if not log.hw_follows_end:
            for waiter in tuple(self.followers):
                waiter.grown(size)
            self._listener.appended(self)
        elif not needs_flush:
            self._show_all()
        if needs_flush:
            self._listener.flush_due(self)

    def flushed(self) -> None:
        """Everything appended before the last flush began may be acknowledged."""
        if self.log.hw_follows_end:
            self._show_all()
            return
        self._listener.appended(self)
        for waiter in tuple(self.waiters):
            waiter.grown(0)  # waiters with acks=1 wait for the flush, not for the high watermark

    def outcome(self, leader_epoch: int, end: int, *, needs_all: bool = True) -> int | None:
        """Return the outcome of an append in ``leader_epoch`` that ends at ``end``: `COMMITTED`, an error code, or
        None while it is open. With ``needs_all`` it is acks=all; otherwise acks=1, which waits only for the flush.
        ``waiters`` are woken when the outcome may have changed. Rules of
        ``Partition.checkEnoughReplicasReachOffset``."""
        progress = self.progress
        if progress is None or self.leader_epoch != leader_epoch:
            return KAFKA_STORAGE_ERROR if self.log.has_failed else NOT_LEADER_OR_FOLLOWER
        log = self.log
        if (log.high_watermark if needs_all else log.flushed_end) < end:
            if log.has_failed:
                return KAFKA_STORAGE_ERROR
            return NOT_LEADER_OR_FOLLOWER if needs_all and self.is_suspended else None
        if not needs_all:
            return COMMITTED
        return COMMITTED if progress.has_enough else NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def advance(self, brokers: Brokers, now_ms: int) -> bool:
        """Advance the high watermark as far as the followers allow. Return whether it moved."""
        progress, log = self.progress, self.log
        if progress is None or self.is_suspended:
            return False
        found = progress.high_watermark(log.high_watermark, log.flushed_end, brokers, now_ms)
        if found <= log.high_watermark:
            return False
        self._commit(found)
        return True

    def _commit(self, high_watermark: int) -> None:
        """Commit everything below ``high_watermark``: show it to readers and acknowledge it to writers."""
        self.log.update_high_watermark(high_watermark)
        self._show()
        size, self._unseen = self._unseen, 0
        for waiter in tuple(self.waiters):
            waiter.grown(size or MAX_INT32)
        for follower in self.followers:
            follower.grown(0)  # its next answer has the high watermark
        self._listener.committed(self)

    def wake(self) -> None:
        """Wake all waiters: the partition goes away, or has another leader."""
        for waiter in tuple(self.waiters):
            waiter.grown(MAX_INT32)
        self.wake_followers()

    def damaged(self, error: SeglogError) -> None:
        """A reader has found damage: this replica must neither lead nor follow."""
        self._listener.damaged(self, error)

    def read(self, offset: int, max_bytes: int, up_to: UpTo, *, min_one: bool) -> LogSlice:
        """Return a slice for a consumer. An offset above the visible end is out of range only if the log ends before
        it."""
        return self.log.read(offset, max_bytes, up_to=up_to, min_one=min_one)

    def sent(self, size: int) -> None:
        """Count bytes that a consumer gets."""
        self.bytes_out += size

    def serve_replica(self, asked: ReplicaFetch, brokers: Brokers, now_ms: int) -> ReplicaAnswer:
        """Answer a follower, and note how far it has come. Raises `FencedLeaderEpochError`, `UnknownLeaderEpochError`,
        `NotLeaderError`, `OffsetOutOfRangeError`."""
        self.check_epoch(asked.leader_epoch)
        progress, log = self._check_leads(), self.log
        follower = progress.followers.get(asked.node_id)
        if follower is None:
            raise NotLeaderError(f"broker {asked.node_id} has no replica of {self.topic_partition}")
        diverging = self.diverging_epoch(asked.last_epoch, asked.offset)
        if diverging is not None:  # its log differs: its fetch proves nothing (KAFKA-13141)
            return ReplicaAnswer(diverging, None, log.high_watermark, log.log_start_offset)
        found = log.read(asked.offset, asked.max_bytes, up_to=UpTo.LOG_END, min_one=asked.min_one)
        follower.fetched(
            asked.offset, asked.log_start_offset, asked.broker_epoch, log.log_end_offset, now_ms, asked.heard
        )
        self.advance(brokers, now_ms)
        return ReplicaAnswer(None, found, log.high_watermark, log.log_start_offset)

    def is_followed_since(self, asked_ms: int) -> bool:
        """Whether no other leader had committed anything at ``asked_ms`` of the broker's clock: all replicas that could
        have been elected followed this one after that."""
        return self.progress is not None and self.progress.is_followed_since(asked_ms)

    def wake_followers(self) -> None:
        """Answer waiting followers, so that each fetches again."""
        for waiter in tuple(self.followers):
            waiter.grown(MAX_INT32)

    def unfollowed(self, heard: FetchTimes) -> None:
        """A follower has removed this partition from the session of ``heard``."""
        if self.progress is not None:
            self.progress.unfollowed(heard)

    def propose_isr(self, brokers: Brokers, now_ms: int, *, shrinks: bool = True) -> PartitionState | None:
        """Return the state to be written at the version of `progress` if the ISR has to change. See
        `Progress.propose`."""
        if self.progress is None:
            return None
        ends = self.log.high_watermark, self.log.log_end_offset
        return self.progress.propose(*ends, brokers, now_ms, shrinks=shrinks)

    # Following

    def ask(self, me: Member, max_bytes: int) -> ReplicaFetch:
        """Return the next fetch. The caller flushes the log first if it `Log.needs_flush`: a fetch offset promises that
        everything before it is kept."""
        log = self.log
        end = log.log_end_offset
        return ReplicaFetch(
            me.node_id, me.epoch, self.leader_epoch, end, log.epochs.latest, log.log_start_offset, max_bytes
        )

    def take(self, asked: ReplicaFetch, answer: ReplicaAnswer, records: Buffer) -> LogChange | None:
        """Apply the leader's answer: append ``records`` and advance the high watermark. Return a change of the log that
        must be carried out before the next fetch: a truncation, or a new start. After a `StartAt`, take the answer
        again: its records continue the log then. Raises `CutRefusedError`.

        An answer to a fetch from an earlier epoch, or from before a truncation, is ignored.
        """
        log = self.log
        is_ours = self.progress is None and asked.leader_epoch == self.leader_epoch
        if not is_ours or self._is_waiting or self.is_changing or asked.offset != log.log_end_offset:
            return None
        if answer.diverging is not None:
            return self._cut(log.epochs.truncation_point(answer.diverging, log.log_end_offset))
        self.refused_cut = -1
        if records:
            try:
                log.append(records, leader_epoch=self.leader_epoch, origin=Origin.REPLICATION)
            except UnexpectedAppendOffsetError:
                base = self._start_inside(answer, records)
                if base is None:
                    raise
                return StartAt(self.topic_partition, base)
            self._unseen += len(records)
        committed = min(answer.high_watermark, log.flushed_end)
        if committed > log.high_watermark:
            self._commit(committed)
        start = min(answer.log_start_offset, log.high_watermark)
        return MoveStart(self.topic_partition, start) if start > log.log_start_offset else None

    def _start_inside(self, answer: ReplicaAnswer, records: Buffer) -> int | None:
        """If the log is empty and its end lies inside the first batch of ``records``, return the start of that batch,
        where the log must start (``Partition.appendRecordsToFollowerOrFutureReplica``). DeleteRecords may leave a
        leader's log starting there.

        A log that ends at or before the leader's start has nothing of the leader's either. It may be another history,
        whose epochs the leader no longer knows; Kafka's follower fails there. The log's start becomes the leader's
        again when the batch is committed.
        """
        log = self.log
        end, entry = log.log_end_offset, next(entries(records), None)
        has_nothing = log.log_start_offset == end or end <= answer.log_start_offset
        if entry is None or not has_nothing:
            return None
        header = any_magic.describe(records, entry)
        return header.base_offset if header.base_offset < end <= header.last_offset else None

    def out_of_range(self, leader_start: int, leader_end: int) -> LogChange | None:
        """The leader's log does not contain the end of this one: it ends before, or starts after it
        (``fetchOffsetAndTruncate``). Return the change of this one. Raises `CutRefusedError`."""
        log = self.log
        if leader_end < log.log_end_offset:
            return self._cut(leader_end)
        return StartAt(self.topic_partition, leader_start) if leader_start > log.log_end_offset else None

    def _cut(self, offset: int) -> Cut | None:
        """The truncation to ``offset``; None if the log has nothing from there on, and no epoch that begins there. The
        directory lowers its checkpoints first: a crash neither makes the truncation look like damage nor brings the old
        end back under a new one. Raises `CutRefusedError`."""
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        if offset < end:
            saves = self._check_cut(offset)
            return Cut(self.topic_partition, offset, max(offset, start), end, saves)
        if not log.epochs.begins_from(end):  # KAFKA-10706
            return None
        return Cut(self.topic_partition, end, end, end, saves=False)

    def _check_cut(self, offset: int) -> bool:
        """Check the floor under every truncation. Return whether the records must be copied first: those that only an
        unclean election discards, and of a log that would be left empty."""
        log = self.log
        start, committed, end = log.log_start_offset, log.high_watermark, log.log_end_offset
        is_committed = offset < committed
        last_cut = committed - 1 if is_committed else end - 1
        is_unclean = log.epochs.epoch_for_offset(last_cut) < self._unclean_epoch
        if is_committed and not is_unclean:
            is_known = self.refused_cut == offset
            self.refused_cut = offset
            if not is_known:
                self._listener.cut_refused(self)
            raise CutRefusedError(
                f"{self.topic_partition}: leader {self.leader} of epoch {self.leader_epoch} does not have offsets "
                f"{offset} to {committed - 1}. They are committed, and no unclean election discarded them: they stay "
                "here. Choose a leader with seglog cluster choose-leader"
            )
        self.refused_cut = -1
        return is_unclean or offset <= start < end

    def _show_all(self) -> None:
        self._show()
        size, self._unseen = self._unseen, 0
        if self.waiters:
            for waiter in tuple(self.waiters):
                waiter.grown(size)

    def publish_in(self, words: memoryview) -> None:
        """From now on store the high watermark and the last stable offset in ``words``, two int64 that readers of the
        directory see; they have the present values. `NOT_PUBLISHED` ends that."""
        self._published = words

    def _show(self) -> None:
        """Publish what is committed to readers of the directory; after an unclean election that may be less than
        before."""
        log, words = self.log, self._published
        words[0] = log.high_watermark
        words[1] = log.last_stable_offset


def _other(leader: int, me: Member) -> int:
    """Return the leader to follow: never this broker itself, which a state of an earlier epoch may name."""
    return NO_LEADER if leader == me.node_id else leader
