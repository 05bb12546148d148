"""The composition root of a broker in a cluster, top to bottom. What is opened last is closed first; before that, what
it leads goes to others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from seglog.broker.cluster_changes import ClusterChanges, topic_rules
from seglog.broker.cluster_topics import ClusterTopics
from seglog.broker.elections import Elections
from seglog.broker.follower_fetch import FollowerFetch
from seglog.broker.groups import TopicOfOffsets, group_settings
from seglog.broker.identity import ClusterIdentity
from seglog.broker.leader_hints import LeaderHints
from seglog.broker.neighbours import RACK_AWARE, Neighbours
from seglog.broker.partition_states import ClusterStates
from seglog.broker.producers import ProducerIds
from seglog.broker.readiness import StoreStanding
from seglog.broker.reassignments import Reassignments
from seglog.broker.requests import Handler
from seglog.broker.serving import Serving
from seglog.broker.settings import Configuration
from seglog.broker.warm import warm_up
from seglog.broker.watermarks import Watermarks
from seglog.cluster.formats import FORMAT, OURS
from seglog.cluster.generation import SeenGenerations, check_epochs, check_store, names_to_check
from seglog.cluster.membership import Membership, Registration
from seglog.cluster.model import Broker, strays_name
from seglog.cluster.office import Office
from seglog.cluster.store import (
    ANY_VERSION,
    MISSING,
    Change,
    MetadataStore,
    NameExistsError,
    StoreAwayError,
    StoreError,
    StoreFailedError,
)
from seglog.cluster.view import ClusterView
from seglog.coordinators.runtime import GroupCoordinator
from seglog.coordinators.settings import OFFSETS_TOPIC
from seglog.core.addresses import Address
from seglog.core.broker_config import BrokerConfig
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.replication.fetcher import Fetcher, FetcherConfig
from seglog.replication.followed import Followed
from seglog.replication.replica import Replica
from seglog.replication.replicas import Replicas
from seglog.storage.directory.cluster_mark import ClusterMark, check_marks, read_marks
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.directory.log_dirs_opening import cluster_of, resolve_all
from seglog.storage.directory.strays import size_of
from seglog.storage.formats.checkpoints import encode_id, new_cluster_id

T = TypeVar("T")
_log: Final = logging.getLogger("seglog.broker")
_CLUSTER: Final = "cluster"
_OFFSETS_CONFIG: Final = {"flush.messages": "1"}
"""After a power cut of all machines no committed offset is in doubt. Kafka loses some."""
_STORE_PATIENCE_MS: Final = 18_000
"""How long a store may take to answer at the first start: ``zookeeper.connection.timeout.ms`` of Kafka 3."""
_LAST_NOTE_SECONDS: Final = 1.0
HANDOVER_SECONDS: Final = 15.0
"""How long a broker that is stopped waits for others to lead what it leads."""
_STORE_SECONDS: Final = 3.0
"""How long a broker that ends waits for the metadata store to take a change."""
_STRAYS_LOOK_SECONDS: Final = 5.0
"""How long it may take until strays that were removed are no longer counted."""
_STRAYS_RETRY_SECONDS: Final = 1.0
"""Between two attempts to tell the metadata store how many strays there are."""


class ClusterNode(Serving):
    """A broker that shares its topics with others. ``directories`` are its log directories."""

    directories: LogDirs
    topics: ClusterTopics
    changes: ClusterChanges
    view: ClusterView
    membership: Membership
    office: Office
    replicas: Replicas
    seen: SeenGenerations
    _is_ending = False

    @property
    def paths(self) -> list[str]:
        return [directory.path for directory in self.directories.dirs]

    async def _start(self) -> None:
        config = self.config
        node_id = config.node_id if config.node_id >= 0 else config.broker_id
        if node_id < 0:
            raise InvalidConfigError("node.id is not given: each broker of a cluster has its own")
        fs, run = self._ground.fs, self._ground.workers.run
        past = await run(lambda: cluster_of(fs, config.data_dirs))
        marks = await run(lambda: read_marks(fs, resolve_all(config.data_dirs)))
        self.store = await self._open_store(is_known=past is not None)
        self._parts.push_async_callback(self.store.close)
        cluster_id = await self._cluster(past)
        check_marks(marks, cluster_id=cluster_id, node_id=node_id, store=config.cluster_store)
        await self._check_store(marks)
        await self._open_directories(node_id, cluster_id)
        await self._configure(node_id)
        current = self.configuration.current
        self.view = ClusterView(self.store, lambda topic: topic_rules(topic, self.configuration.current))
        await self.view.start()
        self._parts.push_async_callback(self.view.stop)
        check_epochs(config.cluster_store, self.view, self._leader_epochs())
        self.seen = SeenGenerations(
            self.store, config.cluster_store, self.view, node_id, self._write_generation, self._ground.workers
        )
        self._strays_changed = asyncio.Event()
        self._parts.push_async_callback(self._note_at_the_end)
        self.identity = ClusterIdentity(
            self.view, node_id=node_id, cluster_id=cluster_id, rack=current.broker_rack or None
        )
        self._compose(current, node_id)
        ids = ProducerIds(self.store)
        self._parts.push_async_callback(ids.close)
        settings = group_settings(current, is_alone=False)
        offsets = TopicOfOffsets(self.topics, self.changes, settings, self.identity, _OFFSETS_CONFIG)
        self.groups = GroupCoordinator(offsets, settings, ground=self._ground)
        self.changes.deleted = lambda gone: self.groups.topics_deleted([(gone.name, gone.topic_id)])
        self.replicas.changed.append(self._moved)
        self._begin("groups", self.groups.run())
        await self._open_to_clients(ids)
        await self._join()
        self._begin("offsets-topic", self._flush_offsets())
        self._begin("warm-up", warm_up())

    async def _open_store(self, *, is_known: bool) -> MetadataStore:
        """A broker that has been in the cluster waits for its store, however long it is away; a new one may have been
        given a wrong address."""
        config = self.config
        session_ms = config.broker_session_timeout_ms
        while True:
            try:
                return await self._unless_ended(
                    self._ground.open_store(
                        config.cluster_store,
                        clock=self._ground.clock,
                        session_timeout_ms=session_ms,
                        patience_ms=2 * session_ms if is_known else _STORE_PATIENCE_MS,
                        must_exist=is_known,
                    )
                )
            except StoreAwayError as error:
                if not is_known:
                    raise
                _log.warning("%s; this broker waits for it", error)

    async def _unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """`StoreFailedError` if the broker is to end before the store has answered."""
        loop = asyncio.get_running_loop()
        working, ending = loop.create_task(work), loop.create_task(self.over.wait())
        try:
            await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise StoreFailedError(f"{self.config.cluster_store} did not answer before this broker was ended")
            return working.result()
        finally:
            for task in (working, ending):
                task.cancel()
            await asyncio.gather(working, ending, return_exceptions=True)

    async def _cluster(self, past: tuple[str, str] | None) -> str:
        """The cluster's id, which the first broker chooses. Directories with a ``past`` in a cluster do not begin
        another one: the metadata have been lost, or the store is the wrong one."""
        found = await self.store.get(_CLUSTER)
        if found is None:
            if past is not None:
                cluster, directory = past
                raise InvalidConfigError(
                    f"{self.config.cluster_store} has no cluster, and {directory} belongs to cluster {cluster}. If its "
                    "metadata store is lost: seglog cluster restore, or seglog cluster rebuild (docs/replication.md)"
                )
            chosen = self._cluster_id or new_cluster_id(self._ground.rng)
            identity = json.dumps({"cluster.id": chosen}).encode()
            try:
                await self.store.commit(
                    [Change(_CLUSTER, identity, MISSING), Change(FORMAT, b"%d" % OURS.high, MISSING)]
                )
            except NameExistsError:
                found = await self.store.get(_CLUSTER)
            else:
                return chosen
        assert found is not None
        there = str(json.loads(found.value)["cluster.id"])
        if self._cluster_id not in (None, there):
            raise InvalidConfigError(f"{self.config.cluster_store} is of cluster {there}, not {self._cluster_id}")
        return there

    async def _check_store(self, marks: Mapping[str, ClusterMark]) -> None:
        """`StoreWentBackError` if a directory has seen a later store than this one. Nothing is written before."""
        for path, mark in marks.items():
            check_store(
                self.config.cluster_store,
                await self.store.get_many(names_to_check(mark.node_id)),
                node_id=mark.node_id,
                generation=mark.generation,
                broker_epoch=mark.broker_epoch,
                directory=path,
            )

    def _leader_epochs(self) -> Iterator[tuple[UUID, int, str, int]]:
        for directory in self.directories.healthy:
            for partition, log in directory.logs.items():
                topic_id = directory.topic_ids.get(partition)
                if topic_id is not None:
                    yield topic_id, partition.partition, log.path, log.epochs.latest

    async def _open_directories(self, node_id: int, cluster_id: str) -> None:
        config, ground = self.config, self._ground
        self.directories = await ground.workers.run(
            partial(
                LogDirs.open,
                config.data_dirs,
                config=config.directory,
                background=True,
                cluster_id=cluster_id,
                node_id=node_id,
                fs=ground.fs,
                clock=ground.clock,
                rng=ground.rng,
                make_worker=ground.make_worker,
            )
        )
        self._parts.push_async_callback(ground.workers.run, self.directories.close)

    async def _configure(self, node_id: int) -> None:
        static = {**self.config.given, "node.id": str(node_id), "broker.id": str(node_id)}
        self.configuration = Configuration(BrokerConfig.from_mapping(static), self.store, node_id)
        await self.configuration.load()
        if self.configuration.current.directory != self.config.directory:
            self.directories.reconfigure(self.configuration.current.directory)

    def _compose(self, current: BrokerConfig, node_id: int) -> None:
        listener = inter_broker_listener(current)
        self.membership = Membership(
            self.store,
            self.view,
            Registration(node_id, {}, current.broker_rack or None, self._directory_ids()),
            session_timeout_ms=current.broker_session_timeout_ms,
            kept_since=self.directories.kept_since,
            ground=self._ground,
        )
        self.office = Office(
            self.store,
            self.view,
            self.membership,
            ground=self._ground,
            imbalance=current.leader_imbalance_per_broker_percentage / 100,
            balance_seconds=(
                current.leader_imbalance_check_interval_seconds if current.auto_leader_rebalance_enable else None
            ),
        )
        fetching = FetcherConfig._make(getattr(current, name) for name in FetcherConfig._fields)

        def reader(broker: Broker) -> Fetcher:
            return Fetcher(broker, listener, self.membership, fetching, ground=self._ground)

        self.replicas = Replicas(
            self.directories,
            self.view,
            self.membership,
            self.store,
            Followed(lambda: self.view.brokers, reader),
            node_id=node_id,
            ground=self._ground,
            lag_max_ms=current.replica_lag_time_max_ms,
        )
        self.topics = ClusterTopics(
            self.view,
            self.replicas.by_key,
            lambda: self.directories.dirs,
            node_id=node_id,
            lost=lambda: self.directories.offline,
        )
        fetch = FollowerFetch(
            self.topics,
            self.replicas.serve,
            max_bytes=current.fetch_max_bytes,
            now_ms=lambda: self.replicas.now_ms,
            rng=self._ground.rng,
            is_there=lambda node: node in self.view.brokers,
        )
        self.neighbours = Neighbours(
            fetch,
            LeaderHints(self.topics, self.identity),
            lambda: self.view.brokers,
            listener,
            rack_aware=current.replica_selector_class == RACK_AWARE,
        )
        self.changes = ClusterChanges(self.store, self.view, self.topics, self.identity, ground=self._ground)
        self._parts.push_async_callback(self.changes.close)
        self._publish_watermarks()

    async def _note_at_the_end(self) -> None:
        """Not for long: a store that does not answer keeps no broker from stopping."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_NOTE_SECONDS):
                await self.seen.note()

    def _write_generation(self, generation: int) -> None:
        me = self.membership.me
        self.directories.note_history(generation=generation, broker_epoch=0 if me is None else me.epoch)

    def _directory_ids(self) -> tuple[str, ...]:
        ids = (directory.meta.directory_id for directory in self.directories.dirs)
        return tuple(encode_id(one) for one in ids if one is not None)

    def _publish_watermarks(self) -> None:
        """Of each log directory, of the partitions that are in it."""
        published: dict[LogDir, Watermarks] = {}
        for directory in self.directories.dirs:
            published[directory] = watermarks = Watermarks(self._ground.fs, directory.path)
            watermarks.open(())
            self._parts.callback(watermarks.close)

        self.replicas.shown = lambda replica: published[replica.directory].add(replica)
        self.replicas.hidden = lambda replica: published[replica.directory].remove(replica)

    async def _join(self) -> None:
        """Lead and follow what the cluster says, and be told of changes, from here on."""
        loop = asyncio.get_running_loop()

        def failed(directory: LogDir, error: OSError) -> None:  # in any thread
            loop.call_soon_threadsafe(self._directory_failed, directory, error)

        self.directories.failed = failed
        for directory in self.directories.dirs:
            directory.health.on_full = partial(self._room_changed, loop, directory)
        self._parts.push_async_callback(self.replicas.close)
        self.replicas.note_generation = self.seen.note
        self.replicas.strays_changed = self._strays_changed.set
        self._begin("strays", self._report_strays())
        await self.replicas.start()
        self.replicas.offline_changed = self._offline_changed
        listeners = {name: _host_port(at) for name, at in self.identity.advertised.items()}
        await self.membership.update(listeners=listeners, offline=self.replicas.offline)
        self.membership.doubted = self._doubted
        self.membership.resigned = self._resigned
        self.membership.confirmed = self._confirmed
        self._parts.push_async_callback(self._leave)
        await self._register()
        self._begin("configuration", self.configuration.follow(self.view, self.changes, self._took_effect))
        self._begin("metadata store", self._end_when_broken(), is_vital=True)
        self._begin("membership", self.membership.run(), is_vital=True)
        self._begin("history", self.seen.run(), is_vital=True)
        self._begin("controller", self.office.run(), is_vital=True)
        self._begin("replicas", self.replicas.run(), is_vital=True)
        self._parts.push_async_callback(self._hand_over)

    async def _register(self) -> None:
        """As long as the store takes no writes this broker waits: it leads and follows nothing before it has an epoch
        of its own."""
        while True:
            try:
                await self._unless_ended(self.membership.join())
            except StoreFailedError as error:
                if self.over.is_set():
                    raise
                _log.warning("%s; this broker waits for it", error)
            else:
                return

    def _more_handlers(self) -> Mapping[int, Handler]:
        states = ClusterStates(self.store, self.view)
        apis = (
            Elections(states, self.topics),
            Reassignments(states, self.topics, self.identity),
        )
        return {key: handler for api in apis for key, handler in api.handlers().items()}

    def _store_standing(self) -> StoreStanding:
        membership = self.membership
        return StoreStanding(
            is_registered=membership.me is not None,
            has_controller=self.view.controller is not None,
            uncertain_seconds=membership.uncertain_seconds,
            uncertain_seconds_total=membership.uncertain_seconds_total,
        )

    async def _hand_over(self) -> None:
        """Have others lead what we lead, before we accept nothing more (KIP-143: controlled shutdown)."""
        self._is_ending = True
        if not self.config.controlled_shutdown_enable:
            return
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                await self.membership.update(is_stopping=True)
        except (StoreError, TimeoutError) as error:
            reason = str(error) or f"the metadata store did not answer in {_STORE_SECONDS:.0f} s"
            _log.warning("what this broker leads cannot be handed over: %s", reason)
            return
        if not await self.view.until(lambda: not self.replicas.to_hand_over(), HANDOVER_SECONDS):
            _log.warning("%d partitions are still led here", len(self.replicas.to_hand_over()))

    async def _leave(self) -> None:
        """A store that does not answer must not keep this process: it ends the session by itself."""
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                await self.membership.leave()
        except (StoreError, TimeoutError):
            _log.warning("the session in the metadata store could not be closed; it ends by its timeout")

    async def _end_when_broken(self) -> None:
        raise StoreError(await self.store.until_broken())

    # What is told of from elsewhere

    def _doubted(self) -> None:
        if not self._is_ending:
            _log.warning(
                "the metadata store has not confirmed the session of node %d: only acks=all is written, and only where "
                "a replica in sync fetches; elections and changes of topics wait",
                self.identity.node_id,
            )
        self.office.resign()
        self.replicas.doubted()

    def _resigned(self) -> None:
        if not self._is_ending:
            _log.warning("node %d has lost its session in the metadata store", self.identity.node_id)
        self.office.resign()
        self.replicas.resign()

    def _confirmed(self) -> None:
        _log.info("the metadata store confirms the session of node %d", self.identity.node_id)
        self.replicas.confirmed()

    async def _report_strays(self) -> None:
        """Tell `seglog cluster status` and metrics how many there are, when that has changed. `seglog cluster strays`
        removes them while this broker runs: as long as there are some it looks again."""
        name, reported, count = strays_name(self.identity.node_id), None, 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STRAYS_LOOK_SECONDS if count else None):
                    await self._strays_changed.wait()
            self._strays_changed.clear()
            count, size = await self._ground.workers.run(self._measure_strays)
            self.topics.note_strays(count, size)
            value = b"%d %d" % (count, size)
            if value == reported:
                continue
            try:
                if await self.store.get(name) is None:
                    await self.store.create(name, value)
                else:
                    await self.store.cas(name, value, ANY_VERSION)
                reported = value
            except StoreError as error:
                _log.warning("the metadata store does not say how many strays there are: %s", error)
                await asyncio.sleep(_STRAYS_RETRY_SECONDS)
                self._strays_changed.set()

    def _measure_strays(self) -> tuple[int, int]:
        strays = self.directories.strays()
        return len(strays), sum(size_of(self._ground.fs, one.path) for one in strays)

    async def _flush_offsets(self) -> None:
        """A topic of offsets that an earlier release has made gets what a new one has, unless it says otherwise."""
        if OFFSETS_TOPIC in self.view.topics:
            try:
                await self.changes.complete_config(OFFSETS_TOPIC, _OFFSETS_CONFIG)
            except SeglogError as error:
                _log.warning("%s is not flushed with each commit: %s", OFFSETS_TOPIC, error)

    def _moved(self, replica: Replica) -> None:
        if replica.topic_partition.topic == OFFSETS_TOPIC:
            self.groups.moved()

    def _directory_failed(self, directory: LogDir, error: OSError) -> None:
        """What is in it is led by others; the other directories go on (KIP-112)."""
        _log.critical("%s is out of use until the next start: %s", directory.path, error)
        self.replicas.directory_failed(directory)

    def _room_changed(self, loop: asyncio.AbstractEventLoop, directory: LogDir) -> None:
        """Its disk is full, or has room again; said in any thread."""
        loop.call_soon_threadsafe(self.replicas.room_changed, directory)

    def _offline_changed(self) -> None:
        """The controller counts this broker as not there for what it cannot serve."""
        self._begin("offline", self.membership.update(offline=self.replicas.offline))


def inter_broker_listener(config: BrokerConfig) -> str:
    """The listener by which other brokers come: that which is named, or the first."""
    names = [listener.name for listener in config.broker_listeners]
    wanted = config.inter_broker_listener_name
    if wanted and wanted not in names:
        raise InvalidConfigError(f"inter.broker.listener.name={wanted!r} is not allowed: listeners has no such name")
    return wanted or names[0]


def _host_port(address: Address) -> str:
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
