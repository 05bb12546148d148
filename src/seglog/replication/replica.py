"""Our replica of a partition in a cluster: whether it leads or follows, and what it does then.

One writer: everything here runs on the broker's event loop, and between two awaits nothing else does, so that an append
is atomic without a lock of its own. Nothing here waits or reads a clock: times are arguments, in milliseconds of a
clock that does not go back.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
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
    LogDirFullError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnexpectedAppendOffsetError,
    UnknownLeaderEpochError,
)
from seglog.core.types import MAX_INT32, NO_EPOCH, Buffer, TopicPartition
from seglog.records import view
from seglog.records.batch import entries
from seglog.replication.progress import FetchTimes, Progress
from seglog.replication.truncation import start_of_reading, truncation_point
from seglog.replication.waiters import GrowthListener
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.loss_evidence import Kept
from seglog.storage.log.admit import Origin
from seglog.storage.log.epochs import EpochEnd
from seglog.storage.log.log import Appended, Log
from seglog.storage.log.reads import Fetched, UpTo

Brokers = Mapping[int, BrokerRegistration]
NOT_PUBLISHED: Final = memoryview(array("q", (0, 0)))
"""Where a replica leaves what nobody is to see."""
COMMITTED: Final = 0
KAFKA_STORAGE_ERROR: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)
NOT_LEADER_OR_FOLLOWER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def flush_now(replica: Replica) -> None:
    """The flush that ``flush.messages`` asks for, while whoever appends waits."""
    replica.log.flush()
    replica.flushed()


class ReplicaFetch(NamedTuple):
    """What a follower asks for. ``leader_epoch`` is the one that it follows in, ``last_epoch`` that of its last batch;
    offsets are its log's end and start. ``min_one``: at least one batch, however large it is."""

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
    """What was cut from a log, offsets from ``start`` to ``end`` (exclusive), and where a copy of it is."""

    start: int
    end: int
    path: str


class ReplicaAnswer(NamedTuple):
    """What it gets: a slice up to the log's end, or where the logs go apart."""

    diverging: EpochEnd | None
    records: Fetched | None
    high_watermark: int
    log_start_offset: int


def _nothing(replica: Replica) -> None:
    del replica


class Replica:
    """It leads, or follows ``leader``, in ``leader_epoch``, as the metadata store says (`apply`).

    While our session is in doubt (`doubt`) a leader commits only if that is safe whoever else has been elected
    (`Progress.may_commit_unconfirmed`); else it ``is_suspended``: it answers its followers, and no client.

    ``followers`` are told when the end of the log grows, and by how much, and with 0 when only more is committed.
    ``appended`` is told when it has been appended to as the leader,
    and ``committed`` when the high watermark has moved.

    A follower never cuts what it knows to be committed, unless an unclean election has begun an epoch since that was
    written: ``refused_cut`` is the offset at which its leader wants it to (-1: it does not), and ``refused`` is told.
    ``saved`` is told of what was copied before it was cut.

    What went in and out since the start is counted for `seglog.broker.metrics`: appends, records, bytes. ``mark`` is
    where readers of the directory see the high watermark and the last stable offset, two int64. ``waiters`` wait for
    what consumers may see to grow.

    ``flush_due`` is told when ``flush.messages`` asks for a flush; it flushes the log, in a thread perhaps, and then
    calls `flushed`. Until then nothing above `Log.flushed_end` is answered, committed or shown.

    The log of a broker that is alone moves its high watermark itself (`Log.hw_follows_end`): nobody is told of an
    append then, and no epoch is begun before there is a record in it.
    """

    __slots__ = (
        "_flush_due",
        "_former",
        "_unclean_epoch",
        "_unseen",
        "appended",
        "appends",
        "bytes_in",
        "bytes_out",
        "committed",
        "directory",
        "followers",
        "in_doubt",
        "is_suspended",
        "leader",
        "leader_epoch",
        "log",
        "mark",
        "messages_in",
        "progress",
        "refused",
        "refused_cut",
        "saved",
        "topic_id",
        "topic_partition",
        "version",
        "waiters",
    )

    def __init__(
        self,
        directory: LogDir,
        topic_partition: TopicPartition,
        topic_id: UUID,
        log: Log,
        *,
        flush_due: Callable[[Replica], None] = flush_now,
    ) -> None:
        log.defer_flushes()
        self._flush_due = flush_due
        self._unseen = 0
        """Bytes that were appended since the high watermark moved."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.waiters: dict[GrowthListener, None] = {}  # in the order in which they came: a run can be repeated
        self.mark = NOT_PUBLISHED
        self.in_doubt = False
        """Another broker may lead it, and the metadata store, which would know, cannot be asked."""
        self.appends = self.messages_in = self.bytes_in = self.bytes_out = 0
        self.directory = directory
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.version = -1
        self.progress: Progress | None = None
        self.followers: dict[GrowthListener, None] = {}
        self.appended: Callable[[Replica], None] = _nothing
        self.committed: Callable[[Replica], None] = _nothing
        self.refused_cut = -1
        self.refused: Callable[[Replica], None] = _nothing
        self.saved: Callable[[Replica, SavedCut], None] = lambda _, __: None
        self._unclean_epoch = NO_EPOCH
        self._former: Progress | None = None
        """When we resigned, if another ISR was on its way to the store."""
        self.is_suspended = False

    @property
    def leads(self) -> bool:
        """Whether it may be written, and asked for what is newest."""
        return self.progress is not None and not self.is_suspended

    @property
    def is_placed(self) -> bool:
        """Whether it leads or follows, so that what it shows is a part of what is committed."""
        return self.leader != NO_LEADER and not self.is_suspended

    @property
    def knows_committed(self) -> bool:
        """Whether the high watermark is what is committed, and not less: that of a new leader may lag until its
        followers have come to the start of its epoch."""
        return self.progress is not None and self.log.high_watermark >= self.progress.epoch_start

    def check_leads(self) -> None:
        """`NotLeaderError` if another broker leads it, or nobody; `LogDirOfflineError` if its disk has failed."""
        self._check_leads()
        if self.is_suspended:
            raise NotLeaderError(self._why_suspended)

    # Who leads

    def apply(self, stored: VersionedState, me: Member, brokers: Brokers, now_ms: int, *, lag_max_ms: int) -> bool:
        """Take over what the store says; whether the leader or its epoch is another one.

        We lead only what we are in sync with in this very life: a state from before our start is about another one.
        """
        state, version = stored
        if version <= self.version:
            return False
        self.version = version
        self._unclean_epoch = state.unclean_epoch
        leads = state.leader == me.node_id and me in state.isr
        self._suspend(is_suspended=self.in_doubt and leads)  # until `weigh` has judged this state
        is_new = state.leader_epoch != self.leader_epoch or leads != (self.progress is not None)
        if not is_new:
            if self.progress is not None:
                self.progress.changed(stored, now_ms)
                self.advance(brokers, now_ms)
            else:
                self.leader = _other(state.leader, me)
            return False
        self.leader_epoch = state.leader_epoch
        self.refused_cut = -1
        try:
            if leads:
                self._lead(stored, me, now_ms, lag_max_ms=lag_max_ms)
                self.advance(brokers, now_ms)
            else:
                self._follow(state, me)
        except LogDirFullError:
            self.leader_epoch = NO_EPOCH  # it is not taken over, and is new when it is tried again
            raise
        self.wake()
        return True

    def _lead(self, stored: VersionedState, me: Member, now_ms: int, *, lag_max_ms: int) -> None:
        if not self.log.hw_follows_end:
            self.log.assign_epoch(self.leader_epoch)
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
            self._flush_due(self)

    def _follow(self, state: PartitionState, me: Member) -> None:
        self.progress = None
        self.leader = _other(state.leader, me)
        log = self.log
        self._truncate(start_of_reading(log.epochs, log.high_watermark, log.log_end_offset))

    def resign(self) -> None:
        """Act as nobody's leader or follower until the store says again who leads: our session is in doubt."""
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
        """The store has not confirmed our session for too long; `weigh` says what that means for a leader."""
        self.in_doubt = True

    def weigh(self, now_ms: int, *, unclean: bool, silence_ms: int) -> bool:
        """In doubt, decide whether we serve clients as the leader; whether that has changed. To be called again as time
        passes. ``unclean``: anyone may be elected, so that nothing fences us."""
        progress = self.progress
        if progress is None:
            return False
        may_commit = not unclean and progress.may_commit_unconfirmed(now_ms, silence_ms)
        return self._suspend(is_suspended=not may_commit)

    def trust(self) -> bool:
        """Our session is certain again, and was so all the time; whether clients are served again."""
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
            f"too few replicas in sync fetch from it"
        )

    def report(self, stored: VersionedState, me: Member, kept: Kept) -> PartitionState | None:
        """The state with what this replica has, to be written by compare-and-set; None if there is nothing to report:
        somebody leads whose log we take, the state says it already, or we have not taken it up yet."""
        state, version = stored
        is_asked = state.leader == NO_LEADER or (self.refused_cut >= 0 and me.node_id not in state.isr_nodes)
        if not is_asked or version != self.version or me.node_id not in state.replicas:
            return None
        evidence = self._evidence(me, kept)
        return None if state.evidence_of(me.node_id) == evidence else with_evidence(state, evidence)

    def _evidence(self, me: Member, kept: Kept) -> Evidence:
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
            raise NotLeaderError(f"{self.topic_partition} is led by another broker")
        return self.progress

    # Leader epochs

    def check_epoch(self, current_epoch: int) -> None:
        """Refuse a client whose metadata are older or newer than ours (KIP-320)."""
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
            raise OffsetOutOfRangeError(f"{self.topic_partition} knows nothing of epoch {last_fetched_epoch}")
        return end if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset else None

    # What a leader does

    def append(self, records: Buffer, origin: Origin = Origin.CLIENT, *, needs_all: bool = False) -> Appended:
        """Append batches as the leader; with ``needs_all`` only if there are enough replicas to commit them. Raises
        what `Log.append` raises, and `NotLeaderError`, `NotEnoughReplicasError`."""
        progress = self._check_leads()
        if progress.state.is_new:
            raise NotLeaderError(
                f"{self.topic_partition} is new: the metadata store has not confirmed that it is written from now on"
            )
        if self.in_doubt:
            self._check_unconfirmed(needs_all=needs_all)
        if needs_all and not progress.has_enough:
            state = progress.state
            raise NotEnoughReplicasError(
                f"{self.topic_partition} has {len(state.isr)} replicas in sync, and needs {state.needed}"
            )
        self.appends += 1
        appended = self.log.append(records, leader_epoch=self.leader_epoch, origin=origin)
        self.messages_in += appended.last_offset - appended.first_offset + 1
        size = len(records)
        self.bytes_in += size
        self._grown(size)
        if self.log.needs_flush:
            self._flush_due(self)
        return appended

    def _check_unconfirmed(self, *, needs_all: bool) -> None:
        self.check_leads()
        if not needs_all:
            raise NotLeaderError(
                f"{self.topic_partition} may be led by another broker: until the metadata store has confirmed this one "
                f"it takes writes with acks=all only"
            )

    def _grown(self, size: int) -> None:
        """So many bytes more are in the log."""
        self._unseen += size
        if self.log.hw_follows_end:
            if not self.log.needs_flush:
                self._show_all()
            return
        for waiter in tuple(self.followers):
            waiter.grown(size)
        self.appended(self)

    def flushed(self) -> None:
        """What was appended before the last flush began may be told."""
        if self.log.hw_follows_end:
            self._show_all()
            return
        self.appended(self)
        for waiter in tuple(self.waiters):
            waiter.grown(0)  # with acks=1 nobody waits for the high watermark

    def outcome(self, leader_epoch: int, end: int, *, needs_all: bool = True) -> int | None:
        """What became of what was appended in an epoch below ``end``, for acks=all, or for acks=1, which waits for the
        flush only: `COMMITTED`, the code of an error, or None while nobody can say; ``waiters`` are woken when that may
        have changed. Rules of ``Partition.checkEnoughReplicasReachOffset``."""
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
        """Move the high watermark on as far as the followers have come; whether it moved."""
        progress, log = self.progress, self.log
        if progress is None or self.is_suspended:
            return False
        found = progress.high_watermark(log.high_watermark, log.flushed_end, brokers, now_ms)
        if found <= log.high_watermark:
            return False
        self._commit(found)
        return True

    def _commit(self, high_watermark: int) -> None:
        """Everything below is committed: who reads may see it, who wrote it is answered."""
        self.log.update_high_watermark(high_watermark)
        self._show()
        size, self._unseen = self._unseen, 0
        for waiter in tuple(self.waiters):
            waiter.grown(size or MAX_INT32)
        for follower in self.followers:
            follower.grown(0)  # it learns of it with what it is told next
        self.committed(self)

    def wake(self) -> None:
        """Have everyone who waits look again: the partition is going away, or is led elsewhere."""
        for waiter in tuple(self.waiters):
            waiter.grown(MAX_INT32)
        self.wake_followers()

    def read(self, offset: int, max_bytes: int, up_to: UpTo, *, min_one: bool) -> Fetched:
        """A slice for a consumer; above what it may see the offset is out of range only if the log ends before."""
        return self.log.read(offset, max_bytes, up_to=up_to, min_one=min_one)

    def serve_replica(self, asked: ReplicaFetch, brokers: Brokers, now_ms: int) -> ReplicaAnswer:
        """Answer a follower, and learn from it how far it has come. `FencedLeaderEpochError`,
        `UnknownLeaderEpochError`, `NotLeaderError`, `OffsetOutOfRangeError`."""
        self.check_epoch(asked.leader_epoch)
        progress, log = self._check_leads(), self.log
        follower = progress.followers.get(asked.node_id)
        if follower is None:
            raise NotLeaderError(f"broker {asked.node_id} has no replica of {self.topic_partition}")
        diverging = self.diverging_epoch(asked.last_epoch, asked.offset)
        if diverging is not None:  # it has not what it says: nothing is learnt (KAFKA-13141)
            return ReplicaAnswer(diverging, None, log.high_watermark, log.log_start_offset)
        found = log.read(asked.offset, asked.max_bytes, up_to=UpTo.LOG_END, min_one=asked.min_one)
        follower.fetched(
            asked.offset, asked.log_start_offset, asked.broker_epoch, log.log_end_offset, now_ms, asked.heard
        )
        self.advance(brokers, now_ms)
        return ReplicaAnswer(None, found, log.high_watermark, log.log_start_offset)

    def is_followed_since(self, asked_ms: int) -> bool:
        """Whether no other leader had committed anything at ``asked_ms``, on the clock of the broker, for all replicas
        that could have been elected followed this one later than that."""
        return self.progress is not None and self.progress.is_followed_since(asked_ms)

    def wake_followers(self) -> None:
        """Answer followers that wait for records, so that each asks again."""
        for waiter in tuple(self.followers):
            waiter.grown(MAX_INT32)

    def unfollowed(self, heard: FetchTimes) -> None:
        """A follower has taken this partition out of the session in which it is heard of."""
        if self.progress is not None:
            self.progress.unfollowed(heard)

    def propose_isr(self, brokers: Brokers, now_ms: int, *, shrinks: bool = True) -> PartitionState | None:
        """The state to be written at the version of `progress`, if the ISR has to change. See `Progress.propose`."""
        if self.progress is None:
            return None
        ends = self.log.high_watermark, self.log.log_end_offset
        return self.progress.propose(*ends, brokers, now_ms, shrinks=shrinks)

    # What a follower does

    def ask(self, me: Member, max_bytes: int) -> ReplicaFetch:
        """What to ask the leader for now. Whoever asks has flushed the log if it `Log.needs_flush`: the offset promises
        that all before it is kept."""
        log = self.log
        end = log.log_end_offset
        return ReplicaFetch(
            me.node_id, me.epoch, self.leader_epoch, end, log.epochs.latest, log.log_start_offset, max_bytes
        )

    def take(self, asked: ReplicaFetch, answer: ReplicaAnswer, records: Buffer) -> None:
        """Do what the leader's answer says: cut the log, or append ``records`` and move the high watermark.

        An answer to a question from an earlier epoch, or from before a cut, is passed over.
        """
        log = self.log
        is_ours = self.progress is None and asked.leader_epoch == self.leader_epoch
        if not is_ours or asked.offset != log.log_end_offset:
            return
        if answer.diverging is not None:
            self._truncate(truncation_point(answer.diverging, log.epochs, log.log_end_offset))
            return
        self.refused_cut = -1
        if records:
            try:
                log.append(records, leader_epoch=self.leader_epoch, origin=Origin.REPLICATION)
            except UnexpectedAppendOffsetError:
                if not self._starts_inside(answer, records):
                    raise
                log.append(records, leader_epoch=self.leader_epoch, origin=Origin.REPLICATION)
            self._unseen += len(records)
        committed = min(answer.high_watermark, log.flushed_end)
        if committed > log.high_watermark:
            self._commit(committed)
        if answer.log_start_offset > log.log_start_offset:
            self.directory.delete_records(*self.topic_partition, min(answer.log_start_offset, log.high_watermark))

    def _starts_inside(self, answer: ReplicaAnswer, records: Buffer) -> bool:
        """If the log is empty and its end lies inside the first batch of ``records``, start it again at that batch
        (``Partition.appendRecordsToFollowerOrFutureReplica``). DeleteRecords may leave a leader's log starting there.

        A log that ends at or before the leader's start has nothing of the leader's either. It may be another history,
        whose epochs the leader no longer knows; Kafka's follower fails there. The log's start becomes the leader's
        again when the batch is committed.
        """
        log = self.log
        end, entry = log.log_end_offset, next(entries(records), None)
        has_nothing = log.log_start_offset == end or end <= answer.log_start_offset
        if entry is None or not has_nothing:
            return False
        header = view.describe(records, entry)
        if not header.base_offset < end <= header.last_offset:
            return False
        self.directory.truncate_fully_and_start_at(*self.topic_partition, header.base_offset)
        return True

    def out_of_range(self, leader_start: int, leader_end: int) -> None:
        """The leader's log has nothing at our end: it ends before, or begins behind (``fetchOffsetAndTruncate``)."""
        log = self.log
        if leader_end < log.log_end_offset:
            self._truncate(leader_end)
        elif leader_start > log.log_end_offset:
            self.directory.truncate_fully_and_start_at(*self.topic_partition, leader_start)
            self._show()

    def _truncate(self, offset: int) -> None:
        """By the directory, which lowers its checkpoints first: no crash makes of the cut a damage, nor the old end
        come back under a new one. `CutRefusedError`."""
        if offset < self.log.log_end_offset:
            self._before_cut(offset)
        self.directory.truncate_to(*self.topic_partition, offset)
        self._show()

    def _before_cut(self, offset: int) -> None:
        """The floor under every cut. What only an unclean election takes, or leaves nothing behind, is saved first."""
        log = self.log
        start, committed, end = log.log_start_offset, log.high_watermark, log.log_end_offset
        is_committed = offset < committed
        last_cut = committed - 1 if is_committed else end - 1
        is_unclean = log.epochs.epoch_for_offset(last_cut) < self._unclean_epoch
        if is_committed and not is_unclean:
            is_known = self.refused_cut == offset
            self.refused_cut = offset
            if not is_known:
                self.refused(self)
            raise CutRefusedError(
                f"{self.topic_partition}: leader {self.leader} of epoch {self.leader_epoch} does not have offsets "
                f"{offset} to {committed - 1}. They are committed, and no election may have lost them: they are kept "
                "here. Choose who leads with seglog cluster choose-leader"
            )
        if is_unclean or offset <= start < end:
            saved = self.directory.save_from(*self.topic_partition, offset)
            self.saved(self, SavedCut(max(offset, start), end, saved))
        self.refused_cut = -1

    def _show_all(self) -> None:
        self._show()
        size, self._unseen = self._unseen, 0
        for waiter in tuple(self.waiters):
            waiter.grown(size)

    def _show(self) -> None:
        """Readers of the directory see what is committed; after an unclean election that may be less than before."""
        self.mark[0] = self.log.high_watermark
        self.mark[1] = self.log.last_stable_offset


def _other(leader: int, me: Member) -> int:
    """Whom to follow: not ourselves, as the state of our last life may say."""
    return NO_LEADER if leader == me.node_id else leader
