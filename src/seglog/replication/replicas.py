"""All replicas of this broker: they take over states from the metadata store, and leaders write their ISRs back.

Everything runs on the broker's event loop, except whatever fsyncs: creating and removing logs, and the changes of
`seglog.replication.log_changes`. A partition is known by its
topic id and number: a topic that is deleted and created again has other partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol
from uuid import UUID

from seglog.cluster.cluster_view import Changes, ClusterView
from seglog.cluster.membership import Membership
from seglog.cluster.model import (
    NO_LEADER,
    TOPICS,
    BrokerRegistration,
    PartitionState,
    Refusal,
    of_partition,
    offline_name,
    partition_name,
    tombstone_name,
)
from seglog.cluster.store import ANY_VERSION, Change, CommitStep, MetadataStore, NoSuchNameError, in_commits
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import (
    CorruptError,
    DamagedPartitionError,
    InvalidLogDirError,
    LogDirFullError,
    LogDirOfflineError,
    SeglogError,
    TooManyFilesError,
)
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.replication.evidence_reports import EvidenceReports
from seglog.replication.fetchers import Fetchers
from seglog.replication.group_flushes import GroupFlushes
from seglog.replication.isr_writes import IsrWrites
from seglog.replication.log_changes import LogChanges
from seglog.replication.replica import Replica, ReplicaAnswer, ReplicaFetch, ReplicaListener, SavedCut
from seglog.replication.waiters import GrowthWaiter
from seglog.storage.directory.catalog import ReplicaSpec
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.log.log import Log

Key = tuple[UUID, int]
_DAMAGES: Final = (DamagedPartitionError, CorruptError, InvalidLogDirError)
"""Faults of a partition's files: `seglog repair` shows the damage and what can be done."""
_SILENT: Final = 1 / 3
"""A leader in doubt assumes that the ISR follows another leader if no member has fetched for this part of
``replica.lag.time.max.ms``."""
_FINISH_SECONDS: Final = 5.0
"""How long a stop waits for appended records to be committed."""
_WEIGH_SECONDS: Final = 0.5
"""How often a leader in doubt checks whether it may continue."""
_logger: Final = logging.getLogger("seglog.replication")


class StaleBrokerEpochError(SeglogError):
    """The request comes from an earlier epoch of its broker (KIP-903)."""

    code = ErrorCode.STALE_BROKER_EPOCH


class ReplicaObserver(Protocol):
    """Hears which replicas a broker has, on its event loop."""

    def shown(self, replica: Replica) -> None:
        """A new replica is served."""

    def hidden(self, replica: Replica) -> None:
        """A replica is not served any more; it may be told again."""

    def strays_changed(self) -> None:
        """See `LogDirs.strays`."""

    async def before_changes(self) -> None:
        """Logs will be created or removed once this returns: see `seglog.cluster.generation`."""


class Replicas(ReplicaListener):
    """Call `start`, then `run` as long as the broker runs. ``changed`` are called with a replica whose role or epoch
    has changed, or that was removed."""

    def __init__(
        self,
        directories: LogDirs,
        view: ClusterView,
        membership: Membership,
        store: MetadataStore,
        followed: Fetchers,
        observer: ReplicaObserver,
        *,
        node_id: int,
        ground: Ground,
        lag_max_ms: int,
    ) -> None:
        self._directories = directories
        self._view = view
        self._membership = membership
        self._followed = followed
        self._observer = observer
        self._node_id = node_id
        self._clock = ground.clock
        self._lag_max_ms = lag_max_ms
        self._by_key: dict[Key, Replica] = {}
        self.by_key: Mapping[Key, Replica] = MappingProxyType(self._by_key)
        self.changed: list[Callable[[Replica], None]] = []
        self._has_resigned = True
        self._is_in_doubt = False
        self._offline: set[Key] = set()
        self._not_yet: set[Key] = set()
        """Those of `_offline` that are tried again."""
        self._refusals: dict[Key, Refusal] = {}
        """Why those of `_offline` are refused whose log directory is in use."""
        self._away: set[Key] = set()
        """Partitions on a full disk that another replica in sync leads. It does not wait for this follower."""
        self._no_room: set[Key] = set()
        """Partitions that could not take over a state because the disk was full."""
        self._before: frozenset[Key] = frozenset()
        """Partitions that existed before this start: this broker may have had them."""
        self._by_topic: dict[UUID, set[int]] = {}
        """The numbers of the replicas in `_by_key`."""
        self._dead: set[UUID] = set()
        """Deleted topics of which this broker may have replicas: their tombstones name it."""
        self._wanted: set[Key] = set()
        self._configured: set[str] = set()
        self._has_work = asyncio.Event()
        self._store = store
        self._isr_writes = IsrWrites(store, view, membership, lambda: self.now_ms)
        self._reports = EvidenceReports(store, view, node_id, self._report)
        self._lane = ground.workers.lane("seglog-replicas")
        self._flushes = GroupFlushes(ground.workers)
        self.log_changes = LogChanges(ground.workers, self._settled)

    @property
    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        return self._view.brokers

    # Start and stop

    async def start(self) -> None:
        """Create the missing replicas of this broker; from here on follow the view."""
        self._view.listeners.append(self._seen)
        self._before = frozenset(self._view.partitions)
        self._wanted.update(self._before)
        self._note_dead(self._view.deletions)
        await self._make_and_remove()
        removed, strays = self._not_named()
        await self._take_out(removed, strays)
        self._observer.strays_changed()
        await self._bury()

    async def run(self) -> None:
        """Create and remove logs, and take lagging followers out of ISRs, until cancelled."""
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

    async def finish(self) -> None:
        """Append nothing more, and wait until what was appended is committed, for a few seconds at the most. Partitions
        that cannot commit now are not waited for.

        Otherwise `resign` would refuse batches that are in the logs. Their producers send them again to the next start,
        which knows only the last batch of each producer and refuses the others as out of order."""
        replicas = list(self._by_key.values())
        for replica in replicas:
            replica.stop_appending()
        until = self._clock.monotonic() + _FINISH_SECONDS
        await asyncio.gather(*(self._settle(replica, until) for replica in replicas))

    async def _settle(self, replica: Replica, until: float) -> None:
        while replica.may_still_commit and (left := until - self._clock.monotonic()) > 0:
            waiter = GrowthWaiter(0, left)
            replica.waiters[waiter] = None
            try:
                await waiter.wait()
            finally:
                replica.waiters.pop(waiter, None)

    async def close(self) -> None:
        """Neither lead nor follow any partition, and wait for work that has begun."""
        if self._seen in self._view.listeners:
            self._view.listeners.remove(self._seen)
        self.resign()
        await self._followed.close()
        await self._isr_writes.close()
        await self._reports.close()
        await self.log_changes.close()
        await self._flushes.close()
        await self._lane.close()

    # Roles

    def resign(self) -> None:
        """The session is over: stop leading and following."""
        self._has_resigned = True
        self._is_in_doubt = False
        for key, replica in self._by_key.items():
            if replica.leader != NO_LEADER:
                self._take_back(key, replica)
            else:
                replica.trust()  # or it would still be in doubt as a leader of the next session

    def _take_back(self, key: Key, replica: Replica) -> None:
        """Let it neither lead nor follow."""
        self._followed.unfollow(key)
        replica.resign()
        self._tell(replica)

    def doubted(self) -> None:
        """The store has not confirmed the session for too long: do only what is safe whichever broker was elected."""
        if self._has_resigned:
            return
        self._is_in_doubt = True
        for replica in self._by_key.values():
            replica.doubt()
        self._weigh(self._by_key)
        self._has_work.set()  # `run` calls `_weigh` from now on

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
                replica.advance(self._view.brokers, self.now_ms)
                self._tell(replica)

    def confirmed(self) -> None:
        """This broker is registered, and certain of it: what the store says about it counts."""
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, False
        self._has_resigned = False
        for key, replica in list(self._by_key.items()):
            if not was_in_doubt:
                replica.forget_version()  # this broker may have a new epoch
            elif replica.trust():
                replica.advance(self._view.brokers, self.now_ms)
                self._tell(replica)
            self._apply(key, replica)

    def _seen(self, changes: Changes) -> None:
        keys: Iterable[Key] = changes.partitions
        if changes.topic_ids:  # a topic may be seen later than its partitions, and go before them
            keys = {*keys, *(key for topic_id in changes.topic_ids for key in self._moved_with(topic_id))}
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
            if replica is not None:  # now: removing the log may take a while
                self._observer.hidden(replica)
                self._take_back(key, replica)
        if changes.brokers:
            self._followed.brokers_changed()
            for key in {key for node in changes.brokers for key in self._view.partitions_on(node)}:
                replica = self._by_key.get(key)
                if replica is not None and replica.progress is not None:
                    replica.advance(self._view.brokers, self.now_ms)
                    self._isr_writes.propose_joins(
                        replica
                    )  # a follower does not repeat a fetch from before its registration was seen
        if changes.topics and not self._directories.owns_topics:
            self._configured |= changes.topics
            self._has_work.set()
        if changes.deletions:
            self._note_dead(changes.deletions)

    def _moved_with(self, topic_id: UUID) -> list[Key]:
        """The partitions that follow the topic: those here if it is gone, otherwise those that are not here yet."""
        here = self._by_topic.get(topic_id, set())
        if topic_id not in self._view.topics_by_id:
            return [(topic_id, number) for number in here]
        return [(topic_id, number) for number in self._view.numbers_of(topic_id) if number not in here]

    def _has_part_of(self, name: str) -> bool:
        topic = self._view.topics.get(name)
        return topic is not None and topic.topic_id in self._by_topic

    def _note_dead(self, topic_ids: Iterable[UUID]) -> None:
        """Note which of these topics this broker has to bury; those without a tombstone for it are forgotten."""
        deletions = self._view.deletions
        for topic_id in topic_ids:
            if self._node_id in deletions.get(topic_id, ()):
                self._dead.add(topic_id)
                self._has_work.set()
            else:
                self._dead.discard(topic_id)

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
            replica.doubt()  # the replica may be newer than the doubt
        try:
            is_new = replica.apply(stored, me, self._view.brokers, self.now_ms, lag_max_ms=self._lag_max_ms)
        except SeglogError as error:
            self._cannot_be_served(key, replica, error)
            return
        except Exception:  # the other partitions must still be updated
            _logger.exception("%s cannot be led or followed", replica.topic_partition)
            self._take_back(key, replica)
            return
        if replica.wanted is not None:
            self._followed.unfollow(key)
            self.log_changes.want(replica, replica.wanted)
            if is_new:
                self._tell(replica)
            return
        if replica.is_changing:  # `_settled` comes back here
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

    def _settled(self, replica: Replica, error: SeglogError | None) -> None:
        """A change of a log was carried out: take over the state that the store has now."""
        key = replica.topic_id, replica.topic_partition.partition
        if self._by_key.get(key) is not replica:
            return
        if error is not None and not replica.is_placed:
            self._cannot_be_served(key, replica, error)
        else:  # a follower's error is the fetcher's, which tries again
            self._apply(key, replica)

    def _cannot_be_served(self, key: Key, replica: Replica, error: SeglogError) -> None:
        if isinstance(error, LogDirFullError):
            self._no_room.add(key)
        _logger.error("%s cannot be led or followed: %s", replica.topic_partition, error)
        self._take_back(key, replica)

    def _tell(self, replica: Replica) -> None:
        for changed in self.changed:
            changed(replica)

    # Creating and removing

    async def _make_and_remove(self) -> None:
        """Create the wanted logs, remove the others, and take over changed configurations of topics."""
        self._has_work.clear()
        configured, self._configured = self._configured, set()
        configs = {name: self._view.topics[name].config for name in sorted(configured) if self._has_part_of(name)}
        if configs:
            await self._lane.run(partial(self._set_configs, configs))
        wanted, self._wanted = self._wanted, set()
        if wanted:  # first, so that a store that goes back after this is noticed
            await self._observer.before_changes()
        await self._remove([key for key in wanted if key in self._by_key and not self._is_mine(key)])
        gone = {key for key in wanted & (self._offline | self._away) if not self._has_part(key)}
        if gone:
            self._offline -= gone
            self._not_yet -= gone
            for key in gone:
                self._refusals.pop(key, None)
            self._away -= gone
            self._report_offline()
        await self._make([key for key in wanted if key not in self._by_key and self._is_mine(key)])

    def _set_configs(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Runs in the thread."""
        for name, config in configs.items():
            try:
                self._directories.set_config(name, config)
            except SeglogError as error:
                _logger.error("the configuration of %s cannot be applied: %s", name, error)

    def _try_again(self) -> None:
        self._wanted |= self._not_yet
        if self._not_yet or self._dead:
            self._has_work.set()
        for directory in self._directories.dirs:
            self.room_changed(directory)

    async def _remove(self, keys: list[Key]) -> None:
        removed: list[TopicPartition] = []
        strays: list[TopicPartition] = []
        for key in keys:
            replica = self._by_key.pop(key)
            self._by_topic[key[0]].discard(key[1])
            if not self._by_topic[key[0]]:
                del self._by_topic[key[0]]
            self._away.discard(key)
            self._no_room.discard(key)
            self._observer.hidden(replica)
            self._take_back(key, replica)
            if key not in self._offline:
                is_named = self._is_removal_named(key, replica.log.epochs.latest)
                (removed if is_named else strays).append(replica.topic_partition)
        await self._take_out(removed, strays)
        if strays:
            self._observer.strays_changed()

    async def _take_out(self, removed: list[TopicPartition], strays: list[TopicPartition]) -> None:
        """Delete the logs of ``removed`` and set those of ``strays`` aside; the next start repeats what fails."""
        for act, partitions in ((self._directories.let_go, removed), (self._directories.set_aside, strays)):
            if partitions:
                try:
                    await self._lane.run(partial(act, partitions))
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
        had_strays = self._directories.has_strays
        try:
            logs = await self._lane.run(partial(self._directories.hold_many, wanted))
        except SeglogError as error:
            logs = [error] * len(wanted)
        before = self._offline.copy(), self._refusals.copy()
        for one, log in zip(wanted, logs, strict=True):
            key = (one.topic_id, one.number)
            if isinstance(log, SeglogError):
                self._cannot_be_had(key, one.partition, log)
                continue
            directory = self._directories.dir_of(one.partition)
            if directory.health.failure is not None:  # it failed before this replica was registered
                self._cannot_be_had(key, one.partition, LogDirOfflineError(f"{directory.path} is out of use"))
                continue
            self._serve_log(key, one.partition, directory, log)
        if had_strays or self._directories.has_strays:
            self._observer.strays_changed()
        if (self._offline, self._refusals) != before:
            self._report_offline()

    def _serve_log(self, key: Key, partition: TopicPartition, directory: LogDir, log: Log) -> None:
        self._offline.discard(key)
        self._not_yet.discard(key)
        self._refusals.pop(key, None)
        replica = self._by_key[key] = Replica(directory, partition, key[0], log, listener=self)
        self._by_topic.setdefault(key[0], set()).add(key[1])
        self._observer.shown(replica)
        if self._is_mine(key):
            self._apply(key, replica)
        else:  # the store has changed in between
            self._wanted.add(key)
            self._has_work.set()

    def _serve_found(self, key: Key) -> bool:
        """On a broker that is alone a log is open before its topic is seen. Return False if it cannot be served."""
        partition = TopicPartition(self._view.topics_by_id[key[0]].name, key[1])
        log = self._directories.found_log(partition)
        if log is None or self._directories.offline:
            return False
        self._serve_log(key, partition, self._directories.dir_of(partition), log)
        return True

    def _cannot_be_had(self, key: Key, partition: TopicPartition, error: SeglogError) -> None:
        if key not in self._offline:
            _logger.error("the replica of %s cannot be opened: %s", partition, error)
        self._refuse(key, partition, error)
        if isinstance(error, TooManyFilesError | LogDirFullError):
            self._not_yet.add(key)
        else:
            self._not_yet.discard(key)

    def _refuse(self, key: Key, partition: TopicPartition, error: SeglogError) -> None:
        self._offline.add(key)
        if not isinstance(error, LogDirOfflineError):  # of these the log directory says why
            is_damaged = isinstance(error, _DAMAGES)
            self._refusals[key] = Refusal(str(error), self._directories.place_of(partition), is_damaged)

    def damaged(self, replica: Replica, error: SeglogError) -> None:
        """Give the partition up until the next start: an intact replica in sync leads it."""
        key = (replica.topic_id, replica.topic_partition.partition)
        if self._by_key.get(key) is not replica or key in self._offline:
            return
        _logger.error("%s is not served any more: %s", replica.topic_partition, error)
        self._refuse(key, replica.topic_partition, error)
        self._take_back(key, replica)
        self._report_offline()

    def refused_partitions(self) -> dict[str, Refusal]:
        """The replicas that this broker has and does not serve, by ``<topic>-<number>``, and why."""
        topics = self._view.topics_by_id
        return {
            str(TopicPartition(topics[topic_id].name, number)): refusal
            for (topic_id, number), refusal in self._refusals.items()
            if topic_id in topics
        }

    def _not_named(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return what is here and not in the cluster. ``removed``: the cluster deleted it, or gave it to other brokers.
        ``strays``: the cluster does not know it. Directories that a lone broker left are in neither."""
        removed: list[TopicPartition] = []
        strays: list[TopicPartition] = []
        if self._directories.owns_topics:
            return removed, strays
        for partition, topic_id in self._directories.found().items():
            entry = self._directories.dir_of(partition).entries.get(partition.topic)
            is_of_cluster = entry is not None and entry.partitions == 0
            if topic_id is None or not is_of_cluster:
                _logger.warning("%s belongs to no topic of this cluster: it stays as it is", partition)
            elif self._is_elsewhere(key := (topic_id, partition.partition)):
                log = self._directories.logs.get(partition)
                is_named = self._is_removal_named(key, None if log is None else log.epochs.latest)
                (removed if is_named else strays).append(partition)
        return removed, strays

    def _is_removal_named(self, key: Key, epoch: int | None) -> bool:
        """Whether the cluster itself names the removal of this replica, instead of only not knowing it.

        Either the topic was deleted and there is a tombstone, or the partition was given to other brokers after
        ``epoch``, in which this log ends.
        """
        view = self._view
        if key[0] in view.topics_by_id:
            stored = view.partitions.get(key)
            return stored is not None and epoch is not None and stored.state.names_removal(epoch)
        return self._node_id in view.deletions.get(key[0], ())

    async def _bury(self) -> None:
        """Delete the logs of deleted topics whose tombstones name this broker, then remove those tombstones."""
        view, mine = self._view, self._node_id
        # `_remove` handles those with a replica here.
        dead = {one for one in self._dead if one not in view.topics_by_id and one not in self._by_topic}
        if not dead:
            return
        had_strays = self._directories.has_strays
        try:
            is_done = await self._lane.run(lambda: self._directories.delete_topics(dead))
            if had_strays:
                self._observer.strays_changed()
            if not is_done:
                return
            for commit in in_commits([Change(tombstone_name(one, mine), None, ANY_VERSION) for one in sorted(dead)]):
                await self._remove_tombstones(commit)
            self._dead -= dead
        except (SeglogError, OSError) as error:
            _logger.warning("%d deleted topics are not removed yet: %s", len(dead), error)

    async def _remove_tombstones(self, steps: Sequence[CommitStep]) -> None:
        try:
            await self._store.commit(steps)
        except NoSuchNameError:  # one is gone already
            for step in steps:
                with suppress(NoSuchNameError):
                    await self._store.commit([step])

    def _is_elsewhere(self, key: Key) -> bool:
        """Whether the cluster certainly has this partition on other brokers, or not at all. A replica that cannot be
        served because it is damaged still belongs here; a value that a later seglog wrote proves nothing."""
        view = self._view
        stored = view.partitions.get(key)
        if stored is not None and self._node_id not in stored.state.replicas:
            return True
        if key[0] in view.topics_by_id or partition_name(*key) in view.unreadable:
            return False
        return not any(name.startswith(f"{TOPICS}/") for name in view.unreadable)

    @property
    def offline(self) -> tuple[str, ...]:
        """All partitions that cannot be served here, by the names of a registration."""
        return tuple(sorted(f"{topic_id}/{number}" for topic_id, number in self._offline | self._away))

    def _report_offline(self) -> None:
        """Let the controller know: it elects other leaders."""
        self._membership.report_offline(
            self.offline, {offline_name(*key): refusal for key, refusal in self._refusals.items()}
        )

    def directory_failed(self, directory: LogDir) -> None:
        """Serve nothing of this directory any more."""
        for key, replica in self._by_key.items():
            if replica.directory is directory:
                self._offline.add(key)
                self._take_back(key, replica)
        self._report_offline()

    # A full disk

    def room_changed(self, directory: LogDir) -> None:
        """The directory's disk is full, or has room again. While it is full, other in-sync replicas lead its partitions
        and do not wait for this broker. It keeps leading those that no other replica has in sync, so that they can be
        read and records deleted."""
        is_full = directory.health.full is not None
        if not (is_full or self._away or self._no_room):
            return
        before = self._away.copy()
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
            self._report_offline()

    def _has_room_elsewhere(self, key: Key) -> bool:
        stored = self._view.partitions.get(key)
        there = of_partition(self._view.brokers, key)
        return stored is not None and any(
            node != self._node_id and node in there and not there[node].is_stopping for node in stored.state.isr_nodes
        )

    def _stand_in(self, key: Key) -> None:
        """Serve a partition of a full disk again if it has no other leader."""
        stored = self._view.partitions.get(key)
        if key in self._away and stored is not None and stored.state.leader == NO_LEADER:
            self._away.discard(key)
            self._report_offline()

    # Leading

    def serve(self, replica: Replica, asked: ReplicaFetch) -> ReplicaAnswer:
        """Answer a follower. Raises what `Replica.serve_replica` does, and `StaleBrokerEpochError`."""
        broker = self._view.brokers.get(asked.node_id)
        if broker is not None and broker.epoch > asked.broker_epoch:
            raise StaleBrokerEpochError(f"broker {asked.node_id} is in epoch {broker.epoch}, not {asked.broker_epoch}")
        answer = replica.serve_replica(asked, self._view.brokers, self.now_ms)
        self._isr_writes.propose_joins(replica)
        return answer

    def appended(self, replica: Replica) -> None:
        replica.advance(self._view.brokers, self.now_ms)

    def committed(self, replica: Replica) -> None:
        replica.advance(self._view.brokers, self.now_ms)

    def check_session(self) -> None:
        self._membership.check()

    def flush_due(self, replica: Replica) -> None:
        self._flushes.due(replica)

    # Evidence, and truncations

    def _report(self, key: Key) -> PartitionState | None:
        me, stored, replica = self._membership.me, self._view.partitions.get(key), self._by_key.get(key)
        if me is None or stored is None or replica is None or not self._membership.is_certain or key in self._offline:
            return None
        kept = self._directories.kept(replica.topic_partition)
        return None if kept is None else replica.report(stored, me, kept)

    def cut_refused(self, replica: Replica) -> None:
        log = replica.log
        _logger.warning(
            "%s: leader %d of epoch %d has nothing from offset %d on. Offsets %d to %d are committed, and stay here. "
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

    def cut_saved(self, replica: Replica, saved: SavedCut) -> None:
        _logger.warning(
            "%s: offsets %d to %d are truncated, because leader %d of epoch %d does not have them; a copy is in %s",
            replica.topic_partition,
            saved.start,
            saved.end - 1,
            replica.leader,
            replica.leader_epoch,
            saved.path,
        )

    def _check_isr(self) -> None:
        for replica in list(self._by_key.values()):
            self._isr_writes.propose(replica, shrinks=True)

    def to_hand_over(self) -> list[Replica]:
        """Return the partitions that this broker leads and another one could: it is in sync and not stopping."""
        others = {node for node, broker in self._view.brokers.items() if not broker.is_stopping} - {self._node_id}
        return [
            replica
            for replica in self._by_key.values()
            if replica.progress is not None and not others.isdisjoint(replica.progress.state.isr_nodes)
        ]
