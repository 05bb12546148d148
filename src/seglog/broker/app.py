"""The composition root of a broker, top to bottom. The last part opened is the first closed.

A broker without a cluster is a cluster of one: its metadata store is in its process and shows what its directory has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar
from uuid import UUID

from seglog.broker.apis.config_rules import check_threads
from seglog.broker.apis.configs import ConfigApis
from seglog.broker.apis.consumer_groups import ConsumerGroupApis
from seglog.broker.apis.features import FeatureApis
from seglog.broker.apis.group_configs import GroupConfigs
from seglog.broker.apis.group_offsets import GroupOffsetApis
from seglog.broker.apis.groups import GroupApis
from seglog.broker.apis.marker_permission import MarkerPermission
from seglog.broker.apis.metadata import MetadataApis
from seglog.broker.apis.offsets import OffsetApis
from seglog.broker.apis.producers import ProducerApis, ProducerIds
from seglog.broker.apis.topics import TopicApis
from seglog.broker.apis.transaction_markers import MarkerAppends, routed
from seglog.broker.apis.transactions import TransactionApis
from seglog.broker.apis.unsupported import UnsupportedApis, without_authorizer
from seglog.broker.broker_lifecycle import BrokerLifecycle
from seglog.broker.broker_storage import DirectoryEvents, StorageOpener
from seglog.broker.broker_tasks import BrokerTasks
from seglog.broker.configuration import Configuration, group_settings, topic_rules, transaction_settings
from seglog.broker.dispatch import Dispatch, frame_limits, warm_up
from seglog.broker.fetch.fetch import Fetch
from seglog.broker.fetch.fetch_sessions import FetchSessionCache
from seglog.broker.ground import BrokerGround
from seglog.broker.health import StoreStatus
from seglog.broker.identity import Identity
from seglog.broker.offload import Offload
from seglog.broker.produce.owner_requests import OwnerRequests, OwnerSocket, listen_for_owner
from seglog.broker.produce.produce import Produce
from seglog.broker.produce.segment_adoption import SegmentAdoption
from seglog.broker.produce.transaction_verification import TransactionVerifier
from seglog.broker.requests import Answer, ApiHandler, RequestContext, sees_all
from seglog.broker.security.exposure import admits_by_name, check_exposure
from seglog.broker.stray_reports import StrayReports
from seglog.broker.topics.internal_topics import InternalTopic
from seglog.broker.topics.topic_changes import TopicChanges
from seglog.broker.topics.topic_image import ClusterTopicImage
from seglog.broker.topics.topics import Topics
from seglog.broker.watermarks import PublishedReplicas, Watermarks
from seglog.cluster.cluster_view import Changes, ClusterView
from seglog.cluster.controller import Controller
from seglog.cluster.features import GROUP_VERSION, SUPPORTED, TRANSACTION_VERSION
from seglog.cluster.formats import OURS, Formats
from seglog.cluster.generation import SeenGenerations, check_epochs
from seglog.cluster.membership import BrokerInfo, Membership
from seglog.cluster.model import BrokerRegistration
from seglog.cluster.store import (
    MetadataStore,
    StoreError,
)
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.transactions.coordinator import TransactionCoordinator
from seglog.coordinators.transactions.markers import MarkerWriter
from seglog.core.addresses import WILDCARDS, Address, parse_host_port
from seglog.core.broker_config import CREATION_RATE, IN_FLIGHT_BYTES, STANDARD_AUTHORIZER, BrokerConfig
from seglog.core.descriptors import allow_open_files
from seglog.core.errors import InvalidConfigError
from seglog.core.rates import Window
from seglog.core.topic_names import OFFSETS_TOPIC, TRANSACTION_TOPIC
from seglog.core.types import MAX_INT32
from seglog.net.connection import FrameHandler, IdleLimits
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.protocol.api_versions import Features
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from seglog.replication.fetchers import Fetchers, LeaderReader
from seglog.replication.replica import Replica
from seglog.replication.replicas import Replicas
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.formats.checkpoints import encode_id

if TYPE_CHECKING:
    from ssl import SSLContext

    from seglog.broker.fetch.cluster_peers import ClusterPeers
    from seglog.broker.peer_requests import PeerRequests
    from seglog.broker.quotas.client_quotas import ClientQuotas
    from seglog.broker.request_errors import RequestErrors
    from seglog.broker.security.acl_store import StoredAcls
    from seglog.broker.security.authorization import Authorization
    from seglog.broker.security.delegation_tokens import DelegationTokens
    from seglog.broker.security.listener_security import SecuredListener
    from seglog.broker.security.users import UserCredentials
    from seglog.replication.throttles import ReplicationThrottles

T = TypeVar("T")
_log: Final = logging.getLogger("seglog.broker")
_OFFSETS_CONFIG: Final = {"flush.messages": "1"}
"""In a cluster, the offsets topic is flushed with each commit: no committed offset is lost if all machines lose power.
Kafka may lose some."""
_NEVER_IDLE_MS: Final = 1 << 40
_FOR_LOGS: Final = 4096
"""File descriptors that connections leave to logs, or a quarter of all."""
_LAST_NOTE_SECONDS: Final = 1.0
_QUOTAS: Final = "config/quotas/"
"""Below it are the quotas of clients in the metadata store."""
_RARE: Final = (
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS,
)


class Node:
    """A broker: ``async with`` it. After `start`, ``addresses`` has what clients can connect to.

    ``peers`` serves the other brokers of the cluster; it is None without a cluster.
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
    transactions: TransactionCoordinator
    _offsets_topic: InternalTopic
    _acls: StoredAcls
    seen: SeenGenerations
    quotas: ConnectionQuotas
    _dispatched: Dispatch

    def __init__(
        self,
        config: BrokerConfig,
        *,
        cluster_id: str | None = None,
        ground: BrokerGround | None = None,
        formats: Formats = OURS,
    ) -> None:
        if not config.data_dirs:
            raise InvalidConfigError("log.dirs is not given: a broker needs a directory for its logs")
        check_exposure(config)
        self.config = config
        self.addresses: list[Address] = []
        self.metrics_address: Address | None = None
        self.peers: ClusterPeers | None = None
        self._cluster_id = cluster_id
        self._ground = ground or BrokerGround()
        self._formats = formats
        self._tasks = BrokerTasks()
        self._descriptors = -1
        self._secured: Mapping[str, SecuredListener] = {}
        self._authorization: Authorization | None = None

    @property
    def over(self) -> asyncio.Event:
        """Set when the broker must stop: on request, or because a task of it has ended."""
        return self._tasks.over

    @property
    def failure(self) -> BaseException | None:
        """The error of the task that ended the broker."""
        return self._tasks.failure

    @property
    def is_alone(self) -> bool:
        return not self.config.cluster_store

    @property
    def paths(self) -> list[str]:
        """The log directories."""
        return [directory.path for directory in self.directories.dirs]

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the first listener, for clients."""
        return self.identity.advertised[self.addresses[0].name].host_port

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open everything, and answer. Errors of `LogDir.open`, `StoreError`, OSError of a port that is taken; then
        everything is closed again."""
        self._descriptors = allow_open_files()
        try:
            await self._start()
        except BaseException:
            await self._tasks.stop()
            raise

    async def stop(self) -> None:
        """Accept no more requests, finish those that have begun, flush everything, and write the clean-shutdown marker.

        `LogDirOfflineError` if the disk fails at this."""
        await self._tasks.stop()

    async def _start(self) -> None:
        events = self._events = DirectoryEvents(asyncio.get_running_loop())
        storage = await StorageOpener(self.config, self._cluster_id, events, self._ground, self._tasks).open()
        self.store, self.directories, node_id, cluster_id = storage
        await self._configure(node_id)
        await self._open_view(node_id)
        self._secure_peers()
        self.identity = Identity(
            self.view, node_id=node_id, cluster_id=cluster_id, rack=self.configuration.current.broker_rack or None
        )
        self._compose_replication(node_id)
        self._compose_topics(node_id)
        self._compose_groups()
        ids = ProducerIds(self.store)
        self._tasks.at_stop(ids.close)
        self._compose_transactions(ids)
        self._compose_authorization()
        if self.is_alone:  # a client finds every topic with its first request
            await self._join()
            await self._open_to_clients(ids)
        else:  # others must find the listeners, and clients get answers while the store takes no writes
            await self._open_to_clients(ids)
            await self._join()
            self._tasks.begin_once("offsets-topic", self._offsets_topic.complete_config())
        await self._open_to_owner()
        self._tasks.begin_once("warm-up", warm_up())

    # Its parts

    async def _configure(self, node_id: int) -> None:
        static = {**self.config.given, "node.id": str(node_id), "broker.id": str(node_id)}
        if self.is_alone:
            static["log.dirs"] = self.directories.dirs[0].path
        self.configuration = Configuration(BrokerConfig.from_mapping(static), self.store, node_id)
        await self.configuration.load()
        if self.configuration.current.directory != self.config.directory:
            self.directories.reconfigure(self.configuration.current.directory)

    async def _open_view(self, node_id: int) -> None:
        self.view = ClusterView(self.store, lambda topic: topic_rules(topic, self.configuration.current))
        await self.view.start()
        self._tasks.at_stop(self.view.stop)
        check_epochs(self.config.cluster_store, self.view, self._leader_epochs())
        self.seen = SeenGenerations(
            self.store, self.config.cluster_store, self.view, node_id, self._write_generation, self._ground.workers
        )
        self._tasks.at_stop(self._note_last_generation)

    def _secure_peers(self) -> None:
        """Connections to other brokers are secured as the listener that they go to."""
        config = self.configuration.current
        if not self.is_alone and config.protocol(config.inter_broker_listener) != "PLAINTEXT":
            from seglog.broker.security.peer_dial import PeerDial

            ground = self._ground
            self._ground = replace(ground, dial=PeerDial(config, ground.rng, ground.workers, dial=ground.dial))

    @cached_property
    def users(self) -> UserCredentials:
        """Users that authenticate by SCRAM."""
        from seglog.broker.security.users import UserCredentials

        return UserCredentials(self.store, self.view, self._delegation_tokens())

    def _delegation_tokens(self) -> DelegationTokens | None:
        from seglog.broker.security.delegation_tokens import DelegationTokens, Lifetimes
        from seglog.client.security.references import Secrets

        config = self.configuration.current
        key = "delegation.token.secret.key"
        secret = Secrets().resolve(key, config.delegation_token_secret_key)
        if not secret:
            return None
        lifetimes = Lifetimes(config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)
        tokens = DelegationTokens(self.store, self.view, secret, lifetimes, self._ground.clock.now_ms)
        seconds = config.delegation_token_expiry_check_interval_ms / 1000
        self._tasks.begin("delegation-tokens", tokens.run(seconds, lambda: self.controller.epoch is not None))
        return tokens

    @cached_property
    def client_quotas(self) -> ClientQuotas:
        """Imported once the cluster has a quota, or is asked for its quotas."""
        from seglog.broker.quotas.client_quotas import ClientQuotas

        return ClientQuotas(self.store, self.view)

    def _follow_quotas(self, dispatch: Dispatch) -> None:
        """Put quotas in force, as soon as the cluster has one."""

        def seen(names: Iterable[str]) -> None:
            if any(name.startswith(_QUOTAS) for name in names):
                if has_changed in self.view.listeners:
                    self.view.listeners.remove(has_changed)
                self._enforce_quotas(dispatch)

        def has_changed(changes: Changes) -> None:
            seen(changes.configs)

        self.view.listeners.append(has_changed)
        seen(self.view.configs)

    def _enforce_quotas(self, dispatch: Dispatch) -> None:
        from seglog.broker.quotas.enforcement import Enforcement
        from seglog.broker.quotas.request_quotas import RequestQuotas

        config = self.configuration.current
        of_clients = Window(config.quota_window_num, config.quota_window_size_seconds * 1000)
        of_mutations = Window(config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000)
        quotas, now = self.client_quotas, self._ground.clock.monotonic
        requests = RequestQuotas(quotas.limits, now, of_clients, of_mutations)
        enforcement = Enforcement(quotas, requests, dispatch.charge_by, self.quotas.rates.limit_ips)
        self._tasks.begin("quotas", enforcement.run())

    async def _create_users(self, text: str) -> None:
        from seglog.client.security.references import Secrets

        await self.users.create(Secrets().resolve("seglog.scram.users", text), self._ground.workers)

    def _secured_listeners(self) -> Mapping[str, SecuredListener]:
        config = self.configuration.current
        if all(config.protocol(address.name) == "PLAINTEXT" for address in config.broker_listeners):
            return {}
        from seglog.broker.security.listener_security import secured_listeners

        self._tasks.begin_once("scram-seed", self.users.make_seed())
        now = asyncio.get_running_loop().time
        ground = self._ground
        return secured_listeners(config, self.users, self.quotas.refusals, now, ground.clock, ground.workers)

    def _leader_epochs(self) -> Iterator[tuple[UUID, int, str, int]]:
        for directory in self.directories.healthy:
            for partition, log in directory.logs.items():
                topic_id = directory.topic_ids.get(partition)
                if topic_id is not None:
                    yield topic_id, partition.partition, log.path, log.epochs.latest

    def _write_generation(self, generation: int) -> None:
        me = self.membership.me
        self.directories.note_history(generation=generation, broker_epoch=0 if me is None else me.epoch)

    async def _note_last_generation(self) -> None:
        """A store that does not answer must not keep the broker from stopping."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_NOTE_SECONDS):
                await self.seen.note()

    def _compose_replication(self, node_id: int) -> None:
        current = self.configuration.current
        self.membership = Membership(
            self.store,
            self.view,
            BrokerInfo(node_id, {}, current.broker_rack or None, self._directory_ids(), self._formats),
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
        published: dict[LogDir, Watermarks] = {}
        for directory in self.directories.dirs:
            published[directory] = watermarks = Watermarks(self._ground.fs, directory.path)
            watermarks.open()
            self._tasks.at_stop(watermarks.close)
        self._strays = StrayReports(self.store, self.directories, node_id, ground=self._ground)
        self.replicas = Replicas(
            self.directories,
            self.view,
            self.membership,
            self.store,
            Fetchers(lambda: self.view.brokers, self._reader),
            PublishedReplicas(published, self._strays, self.seen),
            node_id=node_id,
            ground=self._ground,
            lag_max_ms=current.replica_lag_time_max_ms,
        )

    @cached_property
    def _throttles(self) -> ReplicationThrottles:
        """Of replication. A broker without a cluster has none."""
        from seglog.replication.throttles import ReplicationThrottle, ReplicationThrottles

        config, now = self.configuration.current, self._ground.clock.monotonic
        window = Window(config.replication_quota_window_num, config.replication_quota_window_size_seconds * 1000)
        made = ReplicationThrottles(
            self.identity.node_id, ReplicationThrottle(window, now), ReplicationThrottle(window, now)
        )
        made.limit(self.configuration.dynamic)
        made.topics_changed(self.view.topics, self.view.topics)
        self.view.listeners.append(lambda changes: made.topics_changed(changes.topics, self.view.topics))
        return made

    def _reader(self, leader: BrokerRegistration) -> LeaderReader:
        from seglog.replication.fetcher import Fetcher, FetcherConfig  # a broker without a cluster follows no other

        current = self.configuration.current
        fetching = FetcherConfig._make(getattr(current, name) for name in FetcherConfig._fields)
        changes, ground = self.replicas.log_changes, self._ground
        return Fetcher(
            leader,
            current.inter_broker_listener,
            self.membership,
            fetching,
            changes=changes,
            ground=ground,
            throttle=self._throttles.follower,
        )

    def _kept_since(self, epoch: int, last: int | None) -> int:
        """Without a cluster, no other replica asks what this broker may have lost."""
        return epoch if self.is_alone else self.directories.kept_since(epoch, last)

    def _directory_ids(self) -> tuple[str, ...]:
        ids = (directory.meta.directory_id for directory in self.directories.dirs)
        return tuple(encode_id(one) for one in ids if one is not None)

    def _compose_topics(self, node_id: int) -> None:
        self.topics = Topics(
            self.view,
            self.replicas.by_key,
            lambda: self.directories.dirs,
            node_id=node_id,
            lost=lambda: self.directories.offline,
            strays=lambda: self._strays.counted,
        )
        if not self.is_alone:
            self.peers = self._make_peers()
        self.changes = TopicChanges(self.store, self.view, self.topics, self.identity, ground=self._ground)
        self._tasks.at_stop(self.changes.close)

    def _make_peers(self) -> ClusterPeers:
        from seglog.broker.fetch.cluster_peers import ClusterPeers
        from seglog.broker.fetch.follower_fetch import FollowerFetch
        from seglog.broker.topics.leader_hints import LeaderHints

        current = self.configuration.current
        fetch = FollowerFetch(
            self.topics,
            self.replicas.serve,
            max_bytes=current.fetch_max_bytes,
            now_ms=lambda: self.replicas.now_ms,
            rng=self._ground.rng,
            throttle=self._throttles.leader,
            is_there=lambda node: node in self.view.brokers,
        )
        self.replicas.changed.append(fetch.role_changed)
        return ClusterPeers(
            fetch,
            LeaderHints(self.topics, self.identity),
            lambda: self.view.brokers,
            current.inter_broker_listener,
            rack_aware=current.reads_by_rack,
            needs_proof=bool(current.authorizer_class_name),
        )

    def _compose_groups(self) -> None:
        settings = group_settings(self.configuration.current, is_alone=self.is_alone)
        self._offsets_topic = InternalTopic(
            OFFSETS_TOPIC,
            self.topics,
            self.changes,
            self.identity,
            count=settings.offsets_topic_num_partitions,
            factor=settings.offsets_topic_replication_factor,
            config=settings.topic_config(),
            more={} if self.is_alone else _OFFSETS_CONFIG,
        )
        topics = ClusterTopicImage(self.view, self._ground.clock)
        self._group_configs = GroupConfigs(self.store, self.view, self.configuration)
        self.groups = GroupCoordinator(
            self._offsets_topic, settings, topics, self._group_configs.in_force, ground=self._ground
        )
        self.topics.removed.append(lambda gone: self.groups.topics_deleted([(one.name, one.topic_id) for one in gone]))
        self.replicas.changed.append(self._coordinator_partition_changed)
        self._tasks.begin("groups", self.groups.run())

    def _compose_transactions(self, ids: ProducerIds) -> None:
        settings = transaction_settings(self.configuration.current, is_alone=self.is_alone)
        topic = InternalTopic(
            TRANSACTION_TOPIC,
            self.topics,
            self.changes,
            self.identity,
            count=settings.transaction_state_log_num_partitions,
            factor=settings.transaction_state_log_replication_factor,
            config=settings.topic_config(),
        )
        node_id = self.identity.node_id
        requests = None if self.is_alone else self._make_peer_requests()
        self._marker_appends = MarkerAppends(self.topics, self.groups, self._ground.clock)
        write = routed(self._marker_appends, node_id, None if requests is None else requests.write_markers)
        markers = MarkerWriter(self.topics.leader, write)
        self._tasks.at_stop(markers.close)
        self.transactions = TransactionCoordinator(
            topic,
            settings,
            markers,
            new_producer_id=ids.next,
            version=lambda: self.view.features.level(TRANSACTION_VERSION),
            ground=self._ground,
        )
        self._verifier = TransactionVerifier(
            self.transactions,
            node_id,
            None if requests is None else requests.add_partitions,
            is_enabled=lambda: self.configuration.current.transaction_partition_verification_enable,
        )
        peers = self.peers
        self._marker_permission = MarkerPermission(
            self.transactions,
            peers.is_broker if peers is not None else lambda _: False,
            lambda: self.view.brokers.keys() - {node_id},
            None if requests is None else requests.open_transactions,
        )
        self._tasks.begin("transactions", self.transactions.run())

    def _compose_authorization(self) -> None:
        config = self.configuration.current
        if not config.authorizer_class_name:
            if any(admits_by_name(config, address.name) for address in config.broker_listeners):
                _log.warning(
                    "clients authenticate, but there is no authorizer: each may do everything. Set "
                    "authorizer.class.name=%s and super.users, and add ACLs (docs/security.md)",
                    STANDARD_AUTHORIZER,
                )
            return
        from seglog.broker.security.acl_store import StoredAcls
        from seglog.broker.security.authorization import Authorization
        from seglog.broker.security.authorizer import Authorizer

        authorizer = Authorizer(config.super_principals, allows_without_acls=config.allow_everyone_if_no_acl_found)
        self._acls = StoredAcls(self.store, self.view, authorizer)
        is_broker = self.peers.is_broker if self.peers is not None else lambda _: False
        self._authorization = Authorization(authorizer, is_broker, asyncio.get_running_loop().time)

    def _make_peer_requests(self) -> PeerRequests:
        from seglog.broker.peer_requests import PeerRequests

        listener = self.configuration.current.inter_broker_listener
        peers = PeerRequests(
            self.identity.node_id, lambda: self.view.brokers, listener, self.membership.proof, ground=self._ground
        )
        self._tasks.at_stop(peers.close)
        return peers

    def _coordinator_partition_changed(self, replica: Replica) -> None:
        if replica.topic_partition.topic == OFFSETS_TOPIC:
            self.groups.moved()
        elif replica.topic_partition.topic == TRANSACTION_TOPIC:
            self.transactions.moved()

    async def _join(self) -> None:
        """Register in the cluster; from here on, lead and follow as it says."""
        tasks = self._tasks
        tasks.begin("strays", self._strays.run())
        lifecycle = BrokerLifecycle(
            self.config,
            self.view,
            self.identity,
            self.membership,
            self.controller,
            self.replicas,
            self._events,
            tasks=tasks,
        )
        await lifecycle.join()
        tasks.begin("configuration", self.configuration.follow(self.view, self.changes, self._took_effect))
        tasks.begin("metadata-store", self._end_when_broken())
        tasks.begin("view", self._end_when_blind())
        tasks.begin("history", self.seen.run())
        lifecycle.run()

    async def _end_when_broken(self) -> None:
        raise StoreError(await self.store.until_broken())

    async def _end_when_blind(self) -> None:
        raise await self.view.until_failed()

    # Requests

    def _check_change(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """`InvalidConfigError` if ``after`` cannot take effect now."""
        check_threads(before.directory, after.directory)
        check_exposure(after)
        for listener in self._secured.values():
            listener.check(after)

    def _took_effect(self, config: BrokerConfig) -> None:
        for listener in self._secured.values():
            listener.use(config)
        self.controller.rules_changed()
        if not self.is_alone:
            self._throttles.limit(self.configuration.dynamic)
        self._limit_connections(config)

    def _limit_connections(self, config: BrokerConfig) -> None:
        self.quotas.limit_connections(config.max_connections, config.max_connections_per_ip)
        of_listeners = {
            listener: int(keys[CREATION_RATE])
            for listener, keys in config.listener_keys.items()
            if CREATION_RATE in keys
        }
        self.quotas.rates.limit(config.max_connection_creation_rate, of_listeners)

    def _dispatch(self, ids: ProducerIds, counted: RequestErrors | None = None) -> Dispatch:
        """``counted`` counts the errors in responses, if there is a listener for metrics."""
        config, topics, changes = self.configuration.current, self.topics, self.changes
        loop = asyncio.get_running_loop()
        sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots, now=loop.time, rng=self._ground.rng
        )
        offload = Offload(self._ground.workers)
        self._tasks.at_stop(offload.close)
        authorization = self._authorization
        sees = sees_all if authorization is None else authorization.sees
        apis = (
            MetadataApis(topics, changes, self.identity, self.configuration, self._ground.workers, offload),
            TopicApis(topics, changes, self.identity, self.configuration),
            OffsetApis(topics, changes, offload),
            ConfigApis(
                topics,
                changes,
                self.configuration,
                self._took_effect,
                self._check_change,
                self.identity,
                self._group_configs,
                self.replicas.refused_partitions,
            ),
            ProducerApis(topics),
            GroupApis(self.groups, self.transactions, self.identity, sees),
            ConsumerGroupApis(self.groups, lambda: self.view.features.level(GROUP_VERSION), sees),
            GroupOffsetApis(self.groups, topics, self._verifier),
            TransactionApis(
                self.transactions,
                self.groups,
                topics,
                ids,
                self._marker_appends,
                self._marker_permission,
                self._ground.clock,
            ),
            FeatureApis(self.store, self.view, self.identity),
            UnsupportedApis(self._refused),
        )
        handlers = {key: handler for api in apis for key, handler in api.handlers().items()}
        handlers.update(self._rare_handlers())
        if authorization is None:
            handlers.update(without_authorizer())
        else:
            handlers = self._guarded(handlers, authorization)
        most, peers = config.fetch_max_bytes, self.peers
        broker = self.identity.cluster_id, self.identity.node_id
        if counted is not None:
            self._dispatched = counted.dispatch(
                topics,
                sessions,
                offload,
                handlers,
                max_bytes=most,
                peers=peers,
                verifier=self._verifier,
                max_producers=config.seglog_max_producers,
                features=self._features,
                broker=broker,
                authorization=authorization,
            )
            return self._dispatched
        hints = None if peers is None else peers.hints
        fetch = Fetch(topics, sessions, offload, max_bytes=most, peers=peers, authorization=authorization)
        produce = Produce(
            topics, hints, self._verifier, max_producers=config.seglog_max_producers, authorization=authorization
        )
        self._dispatched = Dispatch(produce, fetch, handlers, offload, self._features, broker)
        return self._dispatched

    def _guarded(self, handlers: Mapping[int, ApiHandler], authorization: Authorization) -> dict[int, ApiHandler]:
        from seglog.broker.apis.acls import AclApis
        from seglog.broker.security.guard import Guard

        acls = AclApis(authorization.authorizer, self._acls)
        guard = Guard(authorization, self.topics, lambda: self.configuration.current.auto_create_topics_enable)
        return guard.guarded({**handlers, **acls.handlers()})

    def _features(self) -> Features:
        """For ApiVersions."""
        finalized = self.view.features
        return Features(SUPPORTED, finalized.levels, finalized.epoch)

    def _refused(self, context: RequestContext, why: str) -> None:
        self.quotas.refusals.log(context.client_host, context.listener, why, client_id=context.client_id)

    def _store_status(self) -> StoreStatus | None:
        """None without a cluster."""
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
        """APIs that few clients use. Their handlers are imported with the first such request."""
        made: dict[int, ApiHandler] = {}

        def handler(key: int) -> ApiHandler:
            def handle(request: Message, context: RequestContext) -> Answer | Awaitable[Answer]:
                if not made:
                    from seglog.broker.apis.client_quotas import ClientQuotaApis
                    from seglog.broker.apis.delegation_tokens import DelegationTokenApis
                    from seglog.broker.apis.elections import ElectionApis
                    from seglog.broker.apis.partition_states import PartitionStates
                    from seglog.broker.apis.quorum import QuorumApis
                    from seglog.broker.apis.reassignments import ReassignmentApis
                    from seglog.broker.apis.scram_credentials import ScramCredentialApis

                    states = PartitionStates(self.store, self.view)
                    made.update(ElectionApis(states, self.topics).handlers())
                    made.update(ReassignmentApis(states, self.topics, self.identity).handlers())
                    made.update(ScramCredentialApis(self.users).handlers())
                    made.update(ClientQuotaApis(self.client_quotas).handlers())
                    protocol = self.configuration.current.protocol
                    made.update(DelegationTokenApis(self.users.tokens, protocol).handlers())
                    made.update(QuorumApis(self.view, self.identity, self._ground.clock).handlers())
                return made[key](request, context)

            return handle

        return {key: handler(key) for key in _RARE}

    # Listeners

    async def _open_to_clients(self, ids: ProducerIds) -> None:
        if self.config.metrics_listener:
            await self._listen_for_metrics(ids, self.config.metrics_listener)
        else:
            await self._listen(self._dispatch(ids))

    async def _listen_for_metrics(self, ids: ProducerIds, where: str) -> None:
        """`_listen` with requests measured, then serve the metrics over HTTP."""
        from seglog.broker.metrics import Metrics  # imported here: a broker without metrics starts sooner
        from seglog.net.http import HttpListener

        metrics = Metrics(
            topics=self.topics,
            groups=self.groups,
            identity=self.identity,
            store_status=self._store_status,
            task_failure=lambda: self._tasks.failure,
            now=self._ground.clock.monotonic,
            started_ms=self._ground.clock.now_ms(),
        )
        self.topics.removed.append(metrics.topics_deleted)
        await self._listen(metrics.measured(self._dispatch(ids, metrics.errors)))
        wanted = parse_host_port(where)
        tls: Callable[[], SSLContext] | None = None
        if wanted.name == "SSL":
            from seglog.broker.security.listener_keys import METRICS, ListenerKeys
            from seglog.broker.security.server_tls import RenewedContext, server_context

            keys = ListenerKeys(self.configuration.current, METRICS, protocol=wanted.name)
            tls = RenewedContext(keys, server_context).context
        listener = HttpListener(wanted.host, wanted.port, metrics.pages(self.quotas), tls=tls)
        await listener.start()
        self._tasks.at_stop(listener.stop)
        self.metrics_address = wanted._replace(port=listener.port)

    async def _listen(self, dispatch: FrameHandler) -> None:
        config = self.configuration.current
        idle_ms = config.connections_max_idle_ms
        in_flight = config.queued_max_request_bytes
        self.quotas = ConnectionQuotas(
            largest=frame_limits(config.socket_request_max_bytes),
            max_connections=config.max_connections,
            max_connections_per_ip=config.max_connections_per_ip,
            in_flight_bytes=in_flight if in_flight > 0 else max(IN_FLIGHT_BYTES, config.socket_request_max_bytes),
            idle=IdleLimits((idle_ms if idle_ms > 0 else _NEVER_IDLE_MS) / 1000),
            creation_rate=config.max_connection_creation_rate,
            window=Window(config.quota_window_num, config.quota_window_size_seconds * 1000),
            protected=config.inter_broker_listener if len(config.broker_listeners) > 1 else None,
            descriptors=_for_connections(self._descriptors),
        )
        self._limit_connections(config)
        self._follow_quotas(self._dispatched)
        if config.seglog_scram_users:
            await self._create_users(config.seglog_scram_users)
        self._secured = secured = self._secured_listeners()
        for one in secured.values():
            self._tasks.begin_once("token-keys", one.prepare())
        advertised = {address.name: address for address in config.advertised_listeners}
        for wanted in config.broker_listeners:
            told = advertised.get(wanted.name, wanted)
            # A client may connect as soon as the socket is there, before its port is known here.
            self.identity.advertise(wanted.name, told, wanted.port)
            listener = self._ground.listener(wanted, dispatch, self.quotas, security=secured.get(wanted.name))
            address = await listener.start()
            self._tasks.at_stop(listener.stop)
            self._tasks.begin(f"listener-{address.name}", listener.run())
            self.addresses.append(address)
            self.identity.advertise(wanted.name, told, address.port)
            if told.host in WILDCARDS:
                _log.warning(
                    "%s listens on all interfaces, and clients are told to connect to %s: if they do not reach it "
                    "there, set advertised.listeners=%s://HOST:%d",
                    address,
                    self.identity.advertised[wanted.name].host_port,
                    address.name,
                    address.port,
                )

    async def _open_to_owner(self) -> None:
        """Take requests of this user's other processes about each directory."""
        workers = self._ground.workers
        requests = OwnerRequests(SegmentAdoption(self.topics, self._verifier, workers), self._status, workers)
        for directory in self.directories.healthy:
            listening = listen_for_owner(directory, self._ground.owner_socket)
            if listening is not None:
                owner = OwnerSocket(listening, partial(requests.answer, directory))
                await owner.start()
                self._tasks.at_stop(owner.stop)

    def _status(self) -> Mapping[str, object]:
        return {"node_id": self.identity.node_id, "bootstrap": self.bootstrap}


def _for_connections(descriptors: int) -> int:
    """How many of the process's file descriptors connections may use; logs get the others. -1: no limit."""
    return MAX_INT32 if descriptors < 0 else descriptors - min(descriptors // 4, _FOR_LOGS)
