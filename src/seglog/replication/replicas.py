"""All replicas of this broker: what the metadata store says of them is taken up here, and what a leader finds out about
who is in sync goes back to it.

Everything is on the broker's event loop but what makes and removes logs, which fsyncs. A partition is known by its
topic's id and its number: a topic that is deleted and made again has other partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar
from uuid import UUID

from seglog.cluster.cluster_view import Changes, ClusterView
from seglog.cluster.membership import Membership
from seglog.cluster.model import (
    NO_LEADER,
    TOPICS,
    BrokerRegistration,
    PartitionState,
    of_partition,
    partition_name,
    tombstone_name,
)
from seglog.cluster.store import ANY_VERSION, Change, MetadataStore, NoSuchNameError, in_commits
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import LogDirFullError, LogDirOfflineError, SeglogError, TooManyFilesError
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.replication.evidence_reports import EvidenceReports
from seglog.replication.fetchers import Fetchers
from seglog.replication.group_flushes import GroupFlushes
from seglog.replication.isr_writes import IsrWrites
from seglog.replication.replica import Replica, ReplicaAnswer, ReplicaFetch, SavedCut
from seglog.storage.directory.catalog import ReplicaSpec
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.log.log import Log

Key = tuple[UUID, int]
T = TypeVar("T")
_SILENT: Final = 1 / 3
"""For which part of ``replica.lag.time.max.ms`` no member of the ISR has fetched when a leader in doubt takes them to
follow another one."""
_WEIGH_SECONDS: Final = 0.5
"""How often a leader in doubt looks whether it may go on."""
_logger: Final = logging.getLogger("seglog.replication")


async def _nothing() -> None:
    pass


class StaleBrokerEpochError(SeglogError):
    """A broker that speaks in an earlier life of its own (KIP-903)."""

    code = ErrorCode.STALE_BROKER_EPOCH


class Replicas:
    """`start`, then `run` as long as the broker runs. ``changed`` are told of a replica whose role or epoch is another
    one, or that is here no more; ``shown`` of one that is new here."""

    def __init__(
        self,
        directories: LogDirs,
        view: ClusterView,
        membership: Membership,
        store: MetadataStore,
        followed: Fetchers,
        *,
        node_id: int,
        ground: Ground,
        lag_max_ms: int,
    ) -> None:
        self._directories = directories
        self._view = view
        self._membership = membership
        self._followed = followed
        self._node_id = node_id
        self._clock = ground.clock
        self._lag_max_ms = lag_max_ms
        self._by_key: dict[Key, Replica] = {}
        self.by_key: Mapping[Key, Replica] = MappingProxyType(self._by_key)
        self.changed: list[Callable[[Replica], None]] = []
        self.shown: Callable[[Replica], None] = lambda _: None
        self.hidden: Callable[[Replica], None] = lambda _: None
        self.note_generation: Callable[[], Awaitable[None]] = _nothing
        """Is awaited before logs are made or removed: see `seglog.cluster.generation`."""
        self.strays_changed: Callable[[], None] = lambda: None
        """Is told when there are other strays: see `LogDirs.strays`."""
        self.offline_changed: Callable[[], None] = lambda: None
        """Is told when there are more partitions that cannot be served: see `offline`."""
        self._has_resigned = True
        self._is_in_doubt = False
        self._offline: set[Key] = set()
        self._not_yet: set[Key] = set()
        """Those of them that are tried again."""
        self._away: set[Key] = set()
        """Those whose disk is full while another replica in sync has room: it leads, and waits for no follower here."""
        self._no_room: set[Key] = set()
        """Those that could not take over a state because the disk was full."""
        self._before: frozenset[Key] = frozenset()
        """Partitions that were there before this start: this broker may have had them."""
        self._wanted: set[Key] = set()
        self._configured: set[str] = set()
        self._has_work = asyncio.Event()
        self._store = store
        self._isr_writes = IsrWrites(store, view, membership, lambda: self.now_ms)
        self._reports = EvidenceReports(store, view, node_id, self._report)
        self._lane = ground.workers.lane("seglog-replicas")
        self._flushes = GroupFlushes(ground.workers)

    @property
    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        return self._view.brokers

    # Life

    async def start(self) -> None:
        """Have a replica of everything that this broker has part in; from here on the view is followed."""
        self._view.listeners.append(self._seen)
        self._before = frozenset(self._view.partitions)
        self._wanted.update(self._before)
        await self._make_and_remove()
        removed, strays = self._not_named()
        await self._take_out(removed, strays)
        self.strays_changed()
        await self._bury()

    async def run(self) -> None:
        """Make and remove logs, and look for followers that lag, until it is cancelled."""
        every = self._lag_max_ms / 2000
        next_check = self._clock.monotonic() + every
        while True:
            left = next_check - self._clock.monotonic()
            if self._is_in_doubt:
                self._weigh(self._by_key)
                left = min(left, _WEIGH_SECONDS)
            if left <= 0:
                self._check_isr()
                self._try_again()
                next_check = self._clock.monotonic() + every
                continue
            try:
                async with asyncio.timeout(left):
                    await self._has_work.wait()
            except TimeoutError:
                continue
            await self._make_and_remove()
            await self._bury()

    async def close(self) -> None:
        """Lead and follow nothing any more, and wait for what has begun."""
        if self._seen in self._view.listeners:
            self._view.listeners.remove(self._seen)
        self.resign()
        await self._followed.close()
        await self._isr_writes.close()
        await self._reports.close()
        await self._flushes.close()
        await self._lane.close()

    # Who leads

    def resign(self) -> None:
        """Our session is over: nobody may rely on us."""
        self._has_resigned = True
        self._is_in_doubt = False
        for key, replica in self._by_key.items():
            if replica.leader != NO_LEADER:
                self._take_back(key, replica)

    def _take_back(self, key: Key, replica: Replica) -> None:
        """It leads and follows nobody."""
        self._followed.unfollow(key)
        replica.resign()
        self._tell(replica)

    def doubted(self) -> None:
        """The store has not confirmed our session for too long: go on with what is safe whoever else was elected."""
        if self._has_resigned:
            return
        self._is_in_doubt = True
        for replica in self._by_key.values():
            replica.doubt()
        self._weigh(self._by_key)
        self._has_work.set()  # `run` weighs from now on

    def _weigh(self, keys: Iterable[Key]) -> None:
        unclean: dict[UUID, bool] = {}
        silence_ms = int(self._lag_max_ms * _SILENT)
        for key in list(keys):
            replica, topic_id = self._by_key[key], key[0]
            if replica.progress is None:
                continue
            if topic_id not in unclean:
                unclean[topic_id] = self._view.is_unclean(topic_id)
            if replica.weigh(self.now_ms, unclean=unclean[topic_id], silence_ms=silence_ms):
                self._advance(replica)
                self._tell(replica)

    def confirmed(self) -> None:
        """We are registered, and certain of it: what the store says of us counts."""
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, False
        self._has_resigned = False
        for key, replica in list(self._by_key.items()):
            if not was_in_doubt:
                replica.forget_version()  # this broker may have a new epoch
            elif replica.trust():
                self._advance(replica)
                self._tell(replica)
            self._apply(key, replica)

    def _seen(self, changes: Changes) -> None:
        keys: Iterable[Key] = changes.partitions
        if changes.topics:  # a topic may be known later than its partitions, and go before them
            topics = self._view.topics_by_id
            gone = [key for key in self._by_key if key[0] not in topics]
            new = {self._view.topics[name].topic_id for name in changes.topics if name in self._view.topics}
            here = [key for key in self._view.partitions if key[0] in new and key not in self._by_key]
            keys = {*keys, *gone, *here}
        for key in keys:
            replica = self._by_key.get(key)
            self._stand_in(key)
            if replica is not None and self._is_mine(key):
                self._apply(key, replica)
                continue
            if replica is None and self._directories.owns_topics and self._is_mine(key) and self._serve_found(key):
                continue
            self._wanted.add(key)
            self._has_work.set()
            if replica is not None:  # at once: to remove it may take a while
                self.hidden(replica)
                self._take_back(key, replica)
        if changes.brokers:
            self._followed.brokers_changed()
            for replica in self._by_key.values():
                if replica.progress is not None:
                    self._advance(replica)
                    self._isr_writes.propose_joins(replica)  # who asked before we saw its registration asks no more
        if changes.topics:
            self._configured |= changes.topics
            self._has_work.set()
        if changes.deletions:
            self._has_work.set()

    def _is_mine(self, key: Key) -> bool:
        return self._has_part(key) and (key not in self._offline or key in self._not_yet)

    def _has_part(self, key: Key) -> bool:
        stored = self._view.partitions.get(key)
        is_replica = stored is not None and self._node_id in stored.state.replicas
        return is_replica and key[0] in self._view.topics_by_id

    def _apply(self, key: Key, replica: Replica) -> None:
        me, stored = self._membership.me, self._view.partitions.get(key)
        if me is None or stored is None or self._has_resigned or key in self._offline or key in self._away:
            return
        self._no_room.discard(key)
        if self._is_in_doubt:
            replica.doubt()  # it may have been made meanwhile
        try:
            is_new = replica.apply(stored, me, self._view.brokers, self.now_ms, lag_max_ms=self._lag_max_ms)
        except SeglogError as error:
            if isinstance(error, LogDirFullError):
                self._no_room.add(key)
            _logger.error("%s can be neither led nor followed: %s", replica.topic_partition, error)
            self._take_back(key, replica)
            return
        except Exception:  # the others are not to miss what they are told
            _logger.exception("%s can be neither led nor followed", replica.topic_partition)
            self._take_back(key, replica)
            return
        if self._is_in_doubt:
            self._weigh((key,))
        if stored.state.leader == NO_LEADER:
            self._reports.want(key)
        if replica.progress is not None:
            self._followed.unfollow(key)
            self._isr_writes.propose(replica)
        else:
            self._followed.follow(key, replica)
        if is_new:
            self._tell(replica)

    def _tell(self, replica: Replica) -> None:
        for changed in self.changed:
            changed(replica)

    # Which are here

    async def _make_and_remove(self) -> None:
        """Have the logs that are wanted, and no others, with the configurations that their topics have now."""
        self._has_work.clear()
        configured, self._configured = self._configured, set()
        here = {replica.topic_partition.topic for replica in self._by_key.values()}
        for name in configured & here & self._view.topics.keys():
            config = self._view.topics[name].config
            try:
                await self._in_thread(partial(self._directories.set_config, name, config))
            except SeglogError as error:
                _logger.error("the configuration of %s cannot be taken up: %s", name, error)
        wanted, self._wanted = self._wanted, set()
        if wanted:  # before it is acted on: a store that goes back from here on is noticed
            await self.note_generation()
        await self._remove([key for key in wanted if key in self._by_key and not self._is_mine(key)])
        gone = {key for key in wanted & (self._offline | self._away) if not self._has_part(key)}
        if gone:
            self._offline -= gone
            self._not_yet -= gone
            self._away -= gone
            self.offline_changed()
        await self._make([key for key in wanted if key not in self._by_key and self._is_mine(key)])

    def _try_again(self) -> None:
        self._wanted |= self._not_yet
        if self._not_yet or any(self._node_id in nodes for nodes in self._view.deletions.values()):
            self._has_work.set()
        for directory in self._directories.dirs:
            self.room_changed(directory)

    async def _remove(self, keys: list[Key]) -> None:
        removed: list[TopicPartition] = []
        strays: list[TopicPartition] = []
        for key in keys:
            replica = self._by_key.pop(key)
            self._away.discard(key)
            self._no_room.discard(key)
            self.hidden(replica)
            self._take_back(key, replica)
            if key not in self._offline:
                is_named = self._is_removal_named(key, replica.log.epochs.latest)
                (removed if is_named else strays).append(replica.topic_partition)
        await self._take_out(removed, strays)
        if strays:
            self.strays_changed()

    async def _take_out(self, removed: list[TopicPartition], strays: list[TopicPartition]) -> None:
        """Delete the logs of the former and set those of the latter aside; what fails is done at the next start."""
        for act, partitions in ((self._directories.let_go, removed), (self._directories.set_aside, strays)):
            if partitions:
                try:
                    await self._in_thread(partial(act, partitions))
                except SeglogError as error:
                    _logger.error("%d replicas cannot be removed: %s", len(partitions), error)

    async def _make(self, keys: list[Key]) -> None:
        if not keys:
            return
        topics = self._view.topics_by_id
        wanted = [
            ReplicaSpec(topics[key[0]].name, *key, topics[key[0]].config, is_new=key not in self._before)
            for key in sorted(keys)
        ]
        try:
            logs = await self._in_thread(partial(self._directories.hold_many, wanted))
        except SeglogError as error:
            logs = [error] * len(wanted)
        before = self._offline.copy()
        for one, log in zip(wanted, logs, strict=True):
            key = (one.topic_id, one.number)
            if isinstance(log, SeglogError):
                self._cannot_be_had(key, one.partition, log)
                continue
            directory = self._directories.dir_of(one.partition)
            if directory.health.failure is not None:  # `directory_failed` did not know of this one
                self._cannot_be_had(key, one.partition, LogDirOfflineError(f"{directory.path} is out of use"))
                continue
            self._serve_log(key, one.partition, directory, log)
        self.strays_changed()
        if self._offline != before:
            self.offline_changed()

    def _serve_log(self, key: Key, partition: TopicPartition, directory: LogDir, log: Log) -> None:
        self._offline.discard(key)
        self._not_yet.discard(key)
        replica = Replica(directory, partition, key[0], log, flush_due=self._flushes.due)
        replica.appended = replica.committed = self._advance
        replica.refused, replica.saved = self._cut_refused, _cut_saved
        self._by_key[key] = replica
        self.shown(replica)
        if self._is_mine(key):
            self._apply(key, replica)
        else:  # the store has changed meanwhile
            self._wanted.add(key)
            self._has_work.set()

    def _serve_found(self, key: Key) -> bool:
        """Of a broker that is alone a log is open before its topic is seen; False if it is not in order."""
        partition = TopicPartition(self._view.topics_by_id[key[0]].name, key[1])
        log = self._directories.found_log(partition)
        if log is None or self._directories.offline:
            return False
        self._serve_log(key, partition, self._directories.dir_of(partition), log)
        return True

    def _cannot_be_had(self, key: Key, partition: TopicPartition, error: SeglogError) -> None:
        if key not in self._offline:
            _logger.error("there is no replica of %s: %s", partition, error)
        self._offline.add(key)
        if isinstance(error, TooManyFilesError | LogDirFullError):
            self._not_yet.add(key)
        else:
            self._not_yet.discard(key)

    def _not_named(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """What is here and the cluster does not name: what it has deleted or given to other brokers, which is removed,
        and what it does not know, which is kept as strays. What a node that was alone has left in a directory stays."""
        removed: list[TopicPartition] = []
        strays: list[TopicPartition] = []
        if self._directories.owns_topics:
            return removed, strays
        for partition, topic_id in self._directories.found().items():
            entry = self._directories.dir_of(partition).entries.get(partition.topic)
            is_of_cluster = entry is not None and entry.partitions == 0
            if topic_id is None or not is_of_cluster:
                _logger.warning("%s is of no topic of this cluster, and left alone", partition)
            elif self._is_elsewhere(key := (topic_id, partition.partition)):
                log = self._directories.logs.get(partition)
                is_named = self._is_removal_named(key, None if log is None else log.epochs.latest)
                (removed if is_named else strays).append(partition)
        return removed, strays

    def _is_removal_named(self, key: Key, epoch: int | None) -> bool:
        """Whether the cluster says itself that this replica is to go, and not only that it does not know it.

        Its topic was deleted, for which there is a tombstone. Or the partition was given to others after the ``epoch``
        that our log ends in.
        """
        view = self._view
        if key[0] in view.topics_by_id:
            stored = view.partitions.get(key)
            return stored is not None and epoch is not None and stored.state.names_removal(epoch)
        return self._node_id in view.deletions.get(key[0], ())

    async def _bury(self) -> None:
        """Delete what is here of topics that were deleted, and say so, each time this broker is asked to."""
        view, mine = self._view, self._node_id
        dead = {topic_id for topic_id, nodes in view.deletions.items() if mine in nodes} - view.topics_by_id.keys()
        dead -= {key[0] for key in self._by_key}  # `_remove` is about to
        if not dead:
            return
        try:
            is_done = await self._in_thread(lambda: self._directories.delete_topics(dead))
            self.strays_changed()
            if not is_done:
                return
            for commit in in_commits([Change(tombstone_name(one, mine), None, ANY_VERSION) for one in sorted(dead)]):
                await self._store.commit(commit)
        except NoSuchNameError:
            return  # somebody else has forgotten it: the view says so soon
        except (SeglogError, OSError) as error:
            _logger.warning("%d deleted topics are not done with yet: %s", len(dead), error)

    def _is_elsewhere(self, key: Key) -> bool:
        """Whether the cluster certainly has this partition elsewhere, or no more. What cannot be served, for it is
        damaged, is ours nevertheless; and what a later seglog has written says nothing that could be read here."""
        view = self._view
        stored = view.partitions.get(key)
        if stored is not None and self._node_id not in stored.state.replicas:
            return True
        if key[0] in view.topics_by_id or partition_name(*key) in view.unreadable:
            return False
        return not any(name.startswith(f"{TOPICS}/") for name in view.unreadable)

    async def _in_thread(self, act: Callable[[], T]) -> T:
        return await self._lane.run(act)

    @property
    def offline(self) -> tuple[str, ...]:
        """All partitions that cannot be served here, as a registration names them."""
        return tuple(sorted(f"{topic_id}/{number}" for topic_id, number in self._offline | self._away))

    def directory_failed(self, directory: LogDir) -> None:
        """Serve nothing of it any more."""
        for key, replica in self._by_key.items():
            if replica.directory is directory:
                self._offline.add(key)
                self._take_back(key, replica)
        self.offline_changed()

    # A full disk

    def room_changed(self, directory: LogDir) -> None:
        """Its disk is full, or has room again. While it is full, others lead what they have in sync, and do not wait
        for us; what nobody else has, we go on leading, so that it is read and records can be deleted."""
        before = self._away.copy()
        is_full = directory.health.full is not None
        for key, replica in list(self._by_key.items()):
            if replica.directory is not directory or key in self._offline:
                continue
            if is_full and key not in self._away and self._has_room_elsewhere(key):
                self._away.add(key)
                self._take_back(key, replica)
            elif not is_full and (key in self._away or key in self._no_room):
                self._away.discard(key)
                self._apply(key, replica)
        if self._away != before:
            self.offline_changed()

    def _has_room_elsewhere(self, key: Key) -> bool:
        stored = self._view.partitions.get(key)
        there = of_partition(self._view.brokers, key)
        return stored is not None and any(
            node != self._node_id and node in there and not there[node].is_stopping for node in stored.state.isr_nodes
        )

    def _stand_in(self, key: Key) -> None:
        """Serve what we have given up, full as the disk is, if nobody leads it any more."""
        stored = self._view.partitions.get(key)
        if key in self._away and stored is not None and stored.state.leader == NO_LEADER:
            self._away.discard(key)
            self.offline_changed()

    # What a leader does

    def serve(self, replica: Replica, asked: ReplicaFetch) -> ReplicaAnswer:
        """Answer a follower. Raises what `Replica.serve_replica` does, and `StaleBrokerEpochError`."""
        broker = self._view.brokers.get(asked.node_id)
        if broker is not None and broker.epoch > asked.broker_epoch:
            raise StaleBrokerEpochError(f"broker {asked.node_id} is in epoch {broker.epoch}, not {asked.broker_epoch}")
        answer = replica.serve_replica(asked, self._view.brokers, self.now_ms)
        self._isr_writes.propose_joins(replica)
        return answer

    # What replicas have that nobody leads, or that do not take what their leader has

    def _report(self, key: Key) -> PartitionState | None:
        me, stored, replica = self._membership.me, self._view.partitions.get(key), self._by_key.get(key)
        if me is None or stored is None or replica is None or not self._membership.is_certain or key in self._offline:
            return None
        kept = self._directories.kept(replica.topic_partition)
        return None if kept is None else replica.report(stored, me, kept)

    def _cut_refused(self, replica: Replica) -> None:
        log = replica.log
        _logger.warning(
            "%s: leader %d of epoch %d has nothing from offset %d on. Offsets %d to %d are committed, and kept here. "
            "This replica stays out of sync until an operator chooses a leader: seglog cluster choose-leader %s %d",
            replica.topic_partition,
            replica.leader,
            replica.leader_epoch,
            replica.refused_cut,
            replica.refused_cut,
            log.high_watermark - 1,
            *replica.topic_partition,
        )
        self._reports.want((replica.topic_id, replica.topic_partition.partition))

    def _advance(self, replica: Replica) -> None:
        replica.advance(self._view.brokers, self.now_ms)

    def _check_isr(self) -> None:
        for replica in list(self._by_key.values()):
            self._isr_writes.propose(replica, shrinks=True)

    def to_hand_over(self) -> list[Replica]:
        """What we lead and another broker could lead instead: one that is in sync, and is not about to stop itself."""
        return [replica for replica in self._by_key.values() if self._has_heirs(replica)]

    def _has_heirs(self, replica: Replica) -> bool:
        if replica.progress is None:
            return False
        brokers = self._view.brokers
        others = [node for node in replica.progress.state.isr_nodes if node != self._node_id and node in brokers]
        return any(not brokers[node].is_stopping for node in others)


def _cut_saved(replica: Replica, saved: SavedCut) -> None:
    _logger.warning(
        "%s: offsets %d to %d are cut, which leader %d of epoch %d does not have; they are saved in %s",
        replica.topic_partition,
        saved.start,
        saved.end - 1,
        replica.leader,
        replica.leader_epoch,
        saved.path,
    )
