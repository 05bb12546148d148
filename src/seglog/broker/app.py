"""The composition root of a broker, top to bottom. What is opened last is closed first.

A broker that is alone is a cluster of one: its metadata store is in its process, and shows what its directory has. In a
cluster the store comes first, and says whether the directories may be used; before such a broker stops, what it leads
goes to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from uuid import UUID

from seglog.broker.apis.configs import ConfigApis
from seglog.broker.apis.group_offsets import GroupOffsetApis
from seglog.broker.apis.groups import GroupApis, TopicOfOffsets
from seglog.broker.apis.metadata import MetadataApis
from seglog.broker.apis.offsets import OffsetApis
from seglog.broker.apis.producers import ProducerApis, ProducerIds
from seglog.broker.apis.topics import TopicApis
from seglog.broker.apis.unsupported import UnsupportedApis
from seglog.broker.configuration import Configuration, group_settings, topic_rules
from seglog.broker.directory_topics import DirectoryTopics
from seglog.broker.dispatch import Dispatch, largest_frame, warm_up
from seglog.broker.fetch import Fetch
from seglog.broker.fetch_sessions import FetchSessionCache
from seglog.broker.ground import BrokerGround
from seglog.broker.health import StoreStatus
from seglog.broker.identity import Identity
from seglog.broker.produce import Produce
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.broker.topic_changes import TopicChanges
from seglog.broker.topics import Topic, Topics
from seglog.broker.watermarks import Watermarks
from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.controller import Controller
from seglog.cluster.embedded_store import EmbeddedStore
from seglog.cluster.formats import FORMAT, OURS
from seglog.cluster.generation import SeenGenerations, check_epochs, check_store, names_to_check
from seglog.cluster.membership import BrokerInfo, Membership
from seglog.cluster.model import BrokerRegistration, strays_name
from seglog.cluster.store import (
    ANY_VERSION,
    MISSING,
    Change,
    MetadataStore,
    NameExistsError,
    StoreAwayError,
    StoreError,
    StoreFailedError,
    VersionedValue,
)
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.settings import OFFSETS_TOPIC
from seglog.core.addresses import WILDCARDS, Address, parse_host_port
from seglog.core.broker_config import IN_FLIGHT_BYTES, BrokerConfig
from seglog.core.descriptors import allow_open_files
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.types import MAX_INT32
from seglog.net.connection import FrameHandler, IdleLimits
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.listener import Endpoint
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from seglog.replication.fetchers import Fetchers, LeaderReader
from seglog.replication.replica import Replica
from seglog.replication.replicas import Replicas
from seglog.storage.directory.cluster_mark import ClusterMark, check_marks, check_unmarked, read_marks
from seglog.storage.directory.contents import resolve
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.directory.log_dirs_opening import cluster_of, resolve_all
from seglog.storage.directory.strays import size_of
from seglog.storage.formats.checkpoints import encode_id, new_cluster_id
from seglog.storage.formats.paths import FORMER_STORE, STORE

if TYPE_CHECKING:
    from seglog.broker.cluster_peers import ClusterPeers
    from seglog.broker.request_errors import RequestErrors

T = TypeVar("T")
_log: Final = logging.getLogger("seglog.broker")
_CLUSTER: Final = "cluster"
_LASTING: Final = ("config", "producer-ids")
"""What a broker that is alone has to remember beside its topics."""
_OFFSETS_CONFIG: Final = {"flush.messages": "1"}
"""After a power cut of all machines of a cluster no committed offset is in doubt. Kafka loses some."""
_NEVER_IDLE_MS: Final = 1 << 40
_FOR_LOGS: Final = 4096
"""File descriptors that connections leave to logs, or a quarter of all."""
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


class Node:
    """A broker: ``async with`` it. After `start`, ``addresses`` has what clients can connect to.

    ``directories`` are its log directories. ``neighbours`` are the other brokers of its cluster: it is None alone.
    """

    store: MetadataStore
    directories: LogDirs
    configuration: Configuration
    view: ClusterView
    identity: Identity
    membership: Membership
    controller: Controller
    replicas: Replicas
    topics: Topics
    changes: TopicChanges
    groups: GroupCoordinator
    seen: SeenGenerations
    shared: ConnectionQuotas

    def __init__(
        self, config: BrokerConfig, *, cluster_id: str | None = None, ground: BrokerGround | None = None
    ) -> None:
        if not config.data_dirs:
            raise InvalidConfigError("log.dirs is not given: a broker needs a directory for its logs")
        self.config = config
        self.over = asyncio.Event()
        """Set when the broker cannot go on: ``failure`` says why."""
        self.failure: BaseException | None = None
        self.addresses: list[Address] = []
        self.metrics_address: Address | None = None
        self.neighbours: ClusterPeers | None = None
        self._cluster_id = cluster_id
        self._ground = ground or BrokerGround()
        self._parts = AsyncExitStack()
        self._descriptors = -1
        self._strays_changed = asyncio.Event()
        self._is_ending = False

    @property
    def is_alone(self) -> bool:
        return not self.config.cluster_store

    @property
    def paths(self) -> list[str]:
        """Where its logs are."""
        return [directory.path for directory in self.directories.dirs]

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the first listener, for clients."""
        name = self.addresses[0].name
        address = self.identity.advertised[name]
        return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open everything, and answer. Errors of `LogDir.open`, `StoreError`, OSError of a port that is taken; then all
        is closed again."""
        self._descriptors = allow_open_files()
        try:
            await self._start()
        except BaseException:
            await self._parts.aclose()
            raise

    async def stop(self) -> None:
        """Accept nothing more, finish what has begun, flush everything, write the marker of a clean shutdown.

        `LogDirOfflineError` if the disk fails at this."""
        await self._parts.aclose()

    async def _start(self) -> None:
        """Open everything; what is to be closed goes to ``_parts``."""
        node_id, cluster_id = await (self._open_alone() if self.is_alone else self._open_in_cluster())
        await self._configure(node_id)
        current = self.configuration.current
        self.view = ClusterView(self.store, lambda topic: topic_rules(topic, self.configuration.current))
        await self.view.start()
        self._parts.push_async_callback(self.view.stop)
        check_epochs(self.config.cluster_store, self.view, self._leader_epochs())
        self.seen = SeenGenerations(
            self.store, self.config.cluster_store, self.view, node_id, self._write_generation, self._ground.workers
        )
        self._parts.push_async_callback(self._note_at_the_end)
        self.identity = Identity(self.view, node_id=node_id, cluster_id=cluster_id, rack=current.broker_rack or None)
        self._compose(current, node_id)
        ids = ProducerIds(self.store)
        self._parts.push_async_callback(ids.close)
        settings = group_settings(current, is_alone=self.is_alone)
        more = {} if self.is_alone else _OFFSETS_CONFIG
        offsets = TopicOfOffsets(self.topics, self.changes, settings, self.identity, more)
        self.groups = GroupCoordinator(offsets, settings, ground=self._ground)
        self.changes.deleted = lambda gone: self.groups.topics_deleted([(gone.name, gone.topic_id)])
        self.replicas.changed.append(self._moved)
        self._begin("groups", self.groups.run())
        if self.is_alone:  # a client finds all that is there with its first request
            await self._join()
            await self._open_to_clients(ids)
        else:  # others have to find the listeners, and a store that takes no writes keeps nobody from asking why
            await self._open_to_clients(ids)
            await self._join()
            self._begin("offsets-topic", self._flush_offsets())
        self._begin("warm-up", warm_up())

    # Alone

    async def _open_alone(self) -> tuple[int, str]:
        """Its directory, and the store that shows what is there; its id, and that of its cluster."""
        config, ground = self.config, self._ground
        node_id = config.node_id if config.node_id >= 0 else config.broker_id
        await ground.workers.run(lambda: check_unmarked(ground.fs, [resolve(config.data_dir)]))
        directory = await ground.workers.run(
            partial(
                LogDir.open,
                config.data_dir,
                config=config.directory,
                background=True,
                cluster_id=self._cluster_id,
                node_id=node_id if node_id >= 0 else None,
                ground=ground,
            )
        )
        self._parts.push_async_callback(ground.workers.run, directory.close)
        self.directories = LogDirs.alone(directory)
        meta = directory.meta
        node_id, cluster_id = meta.node_id or 0, meta.cluster_id or ""
        self.store = await EmbeddedStore.open(
            os.path.join(directory.path, STORE),
            ground,
            lasting=_LASTING,
            backing=DirectoryTopics(directory, node_id),
            former=partial(self._read_first_release, os.path.join(directory.path, FORMER_STORE)),
        )
        self._parts.push_async_callback(self.store.close)
        await self._found(cluster_id)
        return node_id, cluster_id

    def _read_first_release(self, path: str) -> Mapping[str, VersionedValue]:
        """What the first release has left, in a thread."""
        if not self._ground.fs.exists(path):
            return {}
        from seglog.cluster.sqlite_file import read_first_release  # and SQLite with it

        return read_first_release(self._ground.fs, path)

    # In a cluster

    async def _open_in_cluster(self) -> tuple[int, str]:
        """The store, and then the directories, if they are of its cluster; its id, and that of the cluster."""
        config = self.config
        node_id = config.node_id if config.node_id >= 0 else config.broker_id
        if node_id < 0:
            raise InvalidConfigError("node.id is not given: each broker of a cluster has its own")
        fs, run = self._ground.fs, self._ground.workers.run
        past = await run(lambda: cluster_of(fs, config.data_dirs))
        marks = await run(lambda: read_marks(fs, resolve_all(config.data_dirs)))
        lone = None if past is None or past[1] in marks else past[1]
        try:
            self.store = await self._open_store(is_known=past is not None)
        except StoreFailedError as error:
            if lone is not None and not self.over.is_set():
                raise InvalidConfigError(self._how_to_begin(lone)) from error
            raise
        self._parts.push_async_callback(self.store.close)
        cluster_id = await self._cluster(past, lone)
        check_marks(marks, cluster_id=cluster_id, node_id=node_id, store=config.cluster_store)
        await self._check_store(marks)
        await self._open_directories(node_id, cluster_id)
        return node_id, cluster_id

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

    def _how_to_begin(self, directory: str) -> str:
        store = self.config.cluster_store
        return (
            f"{store} has no cluster, and a broker has served {directory} alone. Have that directory begin the cluster "
            f"with its topics: seglog cluster rebuild --store {store} {directory} (docs/replication.md)"
        )

    async def _cluster(self, past: tuple[str, str] | None, lone: str | None) -> str:
        """The cluster's id, which the first broker chooses. Directories with a ``past`` in a cluster do not begin
        another one: the metadata have been lost, or the store is the wrong one. ``lone``: one of them that a broker
        served alone."""
        found = await self.store.get(_CLUSTER)
        if found is None:
            if past is not None:
                cluster, directory = past
                if lone is not None:
                    raise InvalidConfigError(self._how_to_begin(lone))
                raise InvalidConfigError(
                    f"{self.config.cluster_store} has no cluster, and {directory} belongs to cluster {cluster}. If its "
                    "metadata store is lost: seglog cluster restore, or seglog cluster rebuild (docs/replication.md)"
                )
            chosen = self._cluster_id or new_cluster_id(self._ground.rng)
            try:
                await self._found(chosen)
            except NameExistsError:
                found = await self.store.get(_CLUSTER)
            else:
                return chosen
        assert found is not None
        there = str(json.loads(found.value)["cluster.id"])
        if self._cluster_id not in (None, there):
            raise InvalidConfigError(f"{self.config.cluster_store} is of cluster {there}, not {self._cluster_id}")
        return there

    async def _found(self, cluster_id: str) -> None:
        """Begin a cluster in a store that has none. `NameExistsError`."""
        identity = json.dumps({"cluster.id": cluster_id}).encode()
        await self.store.commit([Change(_CLUSTER, identity, MISSING), Change(FORMAT, b"%d" % OURS.high, MISSING)])

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
                ground=ground,
            )
        )
        self._parts.push_async_callback(ground.workers.run, self.directories.close)

    # What it is made of

    async def _configure(self, node_id: int) -> None:
        static = {**self.config.given, "node.id": str(node_id), "broker.id": str(node_id)}
        if self.is_alone:
            static["log.dirs"] = self.directories.dirs[0].path
        self.configuration = Configuration(BrokerConfig.from_mapping(static), self.store, node_id)
        await self.configuration.load()
        if self.configuration.current.directory != self.config.directory:
            self.directories.reconfigure(self.configuration.current.directory)

    def _leader_epochs(self) -> Iterator[tuple[UUID, int, str, int]]:
        for directory in self.directories.healthy:
            for partition, log in directory.logs.items():
                topic_id = directory.topic_ids.get(partition)
                if topic_id is not None:
                    yield topic_id, partition.partition, log.path, log.epochs.latest

    def _compose(self, current: BrokerConfig, node_id: int) -> None:
        self.membership = Membership(
            self.store,
            self.view,
            BrokerInfo(node_id, {}, current.broker_rack or None, self._directory_ids()),
            session_timeout_ms=current.broker_session_timeout_ms,
            kept_since=self._kept_since,
            ground=self._ground,
        )
        self.controller = Controller(
            self.store,
            self.view,
            self.membership,
            ground=self._ground,
            imbalance=current.leader_imbalance_per_broker_percentage / 100,
            balance_seconds=(
                current.leader_imbalance_check_interval_seconds if current.auto_leader_rebalance_enable else None
            ),
        )
        self.replicas = Replicas(
            self.directories,
            self.view,
            self.membership,
            self.store,
            Fetchers(lambda: self.view.brokers, self._reader),
            node_id=node_id,
            ground=self._ground,
            lag_max_ms=current.replica_lag_time_max_ms,
        )
        self.topics = Topics(
            self.view,
            self.replicas.by_key,
            lambda: self.directories.dirs,
            node_id=node_id,
            lost=lambda: self.directories.offline,
        )
        if not self.is_alone:
            self.neighbours = self._make_neighbours(current)
        self.changes = TopicChanges(self.store, self.view, self.topics, self.identity, ground=self._ground)
        self._parts.push_async_callback(self.changes.close)
        self._publish_watermarks()

    def _reader(self, leader: BrokerRegistration) -> LeaderReader:
        from seglog.replication.fetcher import Fetcher, FetcherConfig  # a broker that is alone follows nobody

        current = self.configuration.current
        fetching = FetcherConfig._make(getattr(current, name) for name in FetcherConfig._fields)
        return Fetcher(leader, inter_broker_listener(current), self.membership, fetching, ground=self._ground)

    def _make_neighbours(self, current: BrokerConfig) -> ClusterPeers:
        from seglog.broker.cluster_peers import ClusterPeers, LeaderHints
        from seglog.broker.follower_fetch import FollowerFetch

        fetch = FollowerFetch(
            self.topics,
            self.replicas.serve,
            max_bytes=current.fetch_max_bytes,
            now_ms=lambda: self.replicas.now_ms,
            rng=self._ground.rng,
            is_there=lambda node: node in self.view.brokers,
        )
        return ClusterPeers(
            fetch,
            LeaderHints(self.topics, self.identity),
            lambda: self.view.brokers,
            inter_broker_listener(current),
            rack_aware=current.reads_by_rack,
        )

    def _kept_since(self, epoch: int, last: int | None) -> int:
        """Nobody asks a broker that is alone what it may have lost."""
        return epoch if self.is_alone else self.directories.kept_since(epoch, last)

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
            watermarks.open()
            self._parts.callback(watermarks.close)

        self.replicas.shown = lambda replica: published[replica.directory].add(replica)
        self.replicas.hidden = lambda replica: published[replica.directory].remove(replica)

    # Among the others

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
        self._begin("controller", self.controller.run(), is_vital=True)
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
        self.controller.resign()
        self.replicas.doubted()

    def _resigned(self) -> None:
        if not self._is_ending:
            _log.warning("node %d has lost its session in the metadata store", self.identity.node_id)
        self.controller.resign()
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

    # What answers

    def _took_effect(self, config: BrokerConfig) -> None:
        self.shared.limit_connections(
            config.max_connections, config.max_connections_per_ip, config.max_connection_creation_rate
        )

    def _begin(self, name: str, work: Coroutine[Any, Any, None], *, is_vital: bool = False) -> None:
        """Work that goes on as long as the broker runs; if it ``is_vital``, the broker is `over` when it fails."""
        task = asyncio.get_running_loop().create_task(work, name=f"seglog-{name}")

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or (error := task.exception()) is None:
                return
            _log.critical("%s has ended: %s", task.get_name(), error, exc_info=error)
            if is_vital:
                self.failure = error
                self.over.set()

        task.add_done_callback(ended)
        self._parts.push_async_callback(_end, task)

    def _dispatch(self, ids: ProducerIds, counted: RequestErrors | None = None) -> Dispatch:
        """``counted``: where errors are, if they are."""
        config, topics, changes = self.configuration.current, self.topics, self.changes
        loop = asyncio.get_running_loop()
        sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots, now=loop.time, rng=self._ground.rng
        )
        apis = (
            MetadataApis(topics, changes, self.identity, self.configuration, self._ground.workers),
            TopicApis(topics, changes, self.identity, self.configuration),
            OffsetApis(topics, changes),
            ConfigApis(topics, changes, self.configuration, self._took_effect, self.identity),
            ProducerApis(topics, ids),
            GroupApis(self.groups, self.identity),
            GroupOffsetApis(self.groups, topics),
            UnsupportedApis(self._refused),
        )
        handlers = {key: handler for api in apis for key, handler in api.handlers().items()}
        handlers.update(self._rare_handlers())
        most, neighbours = config.fetch_max_bytes, self.neighbours
        if counted is not None:
            return counted.dispatch(topics, sessions, handlers, max_bytes=most, neighbours=neighbours)
        hints = None if neighbours is None else neighbours.hints
        return Dispatch(
            Produce(topics, hints), Fetch(topics, sessions, max_bytes=most, neighbours=neighbours), handlers
        )

    def _refused(self, context: RequestContext, why: str) -> None:
        self.shared.refusals.log(context.client_host, context.listener, why, client_id=context.client_id)

    def _store_standing(self) -> StoreStatus | None:
        """How it stands with the store of its cluster; None for a broker that is alone."""
        if self.is_alone:
            return None
        membership = self.membership
        return StoreStatus(
            is_registered=membership.me is not None,
            has_controller=self.view.controller is not None,
            uncertain_seconds=membership.uncertain_seconds,
            uncertain_seconds_total=membership.uncertain_seconds_total,
        )

    def _rare_handlers(self) -> Mapping[int, ApiHandler]:
        """Few ask for these: what answers them is imported when somebody does."""
        made: dict[int, ApiHandler] = {}

        def handler(key: int) -> ApiHandler:
            def handle(request: Message, context: RequestContext) -> Answer | Awaitable[Answer]:
                if not made:
                    from seglog.broker.apis.elections import ElectionApis
                    from seglog.broker.apis.partition_states import PartitionStates
                    from seglog.broker.apis.reassignments import ReassignmentApis

                    states = PartitionStates(self.store, self.view)
                    made.update(ElectionApis(states, self.topics).handlers())
                    made.update(ReassignmentApis(states, self.topics, self.identity).handlers())
                return made[key](request, context)

            return handle

        keys = (ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS)
        return {key: handler(key) for key in keys}

    # Who asks

    async def _open_to_clients(self, ids: ProducerIds) -> None:
        if self.config.metrics_listener:
            await self._listen_for_metrics(ids, self.config.metrics_listener)
        else:
            await self._listen(self._dispatch(ids))

    async def _listen_for_metrics(self, ids: ProducerIds, where: str) -> None:
        """`_listen`, with requests measured; then, whoever asks over HTTP is told."""
        from seglog.broker.metrics import Metrics  # here and not above: others are up sooner
        from seglog.net.http import HttpListener

        metrics = Metrics(
            topics=self.topics,
            groups=self.groups,
            identity=self.identity,
            store_standing=self._store_standing,
            now=self._ground.clock.monotonic,
            started_ms=self._ground.clock.now_ms(),
        )
        tell_groups = self.changes.deleted

        def deleted(gone: Topic) -> None:
            tell_groups(gone)
            metrics.topic_deleted(gone)

        self.changes.deleted = deleted
        await self._listen(metrics.measured(self._dispatch(ids, metrics.errors)))
        wanted = parse_host_port(where)
        listener = HttpListener(wanted.host, wanted.port, metrics.pages(self.shared))
        await listener.start()
        self._parts.push_async_callback(listener.stop)
        self.metrics_address = wanted._replace(port=listener.port)

    async def _listen(self, dispatch: FrameHandler) -> None:
        config = self.configuration.current
        idle_ms = config.connections_max_idle_ms
        in_flight = config.queued_max_request_bytes
        self.shared = ConnectionQuotas(
            largest=lambda head: largest_frame(head, config.socket_request_max_bytes),
            max_connections=config.max_connections,
            max_connections_per_ip=config.max_connections_per_ip,
            in_flight_bytes=in_flight if in_flight > 0 else max(IN_FLIGHT_BYTES, config.socket_request_max_bytes),
            patience=IdleLimits((idle_ms if idle_ms > 0 else _NEVER_IDLE_MS) / 1000),
            creation_rate=config.max_connection_creation_rate,
            descriptors=_for_connections(self._descriptors),
        )
        told = {address.name: address for address in config.advertised_listeners}
        for wanted in config.broker_listeners:
            # A client may connect as soon as there is a socket, and is told this; the port may be yet to come.
            self.identity.advertised[wanted.name] = _reachable(told.get(wanted.name, wanted), wanted.port)
            listener = self._ground.listener(Endpoint(wanted.name, wanted.host, wanted.port), dispatch, self.shared)
            endpoint = await listener.start()
            self._parts.push_async_callback(listener.stop)
            self.addresses.append(Address(*endpoint))
            self.identity.advertised[wanted.name] = _reachable(told.get(wanted.name, wanted), endpoint.port)


def inter_broker_listener(config: BrokerConfig) -> str:
    """The listener by which other brokers come: that which is named, or the first."""
    names = [listener.name for listener in config.broker_listeners]
    wanted = config.inter_broker_listener_name
    if wanted and wanted not in names:
        raise InvalidConfigError(f"inter.broker.listener.name={wanted!r} is not allowed: listeners has no such name")
    return wanted or names[0]


def _host_port(address: Address) -> str:
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"


def _for_connections(descriptors: int) -> int:
    """How many of a process's file descriptors connections may take; the others are for logs. -1: there is no limit."""
    return MAX_INT32 if descriptors < 0 else descriptors - min(descriptors // 4, _FOR_LOGS)


def _reachable(address: Address, port: int) -> Address:
    """What clients can connect to: a wildcard is no host, and port 0 no port."""
    host = os.uname().nodename if address.host in WILDCARDS else address.host
    return Address(address.name, host, address.port or port)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
