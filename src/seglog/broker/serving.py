"""What every broker does, whether it is alone or one of a cluster: listen, hand requests to who answers them, and end
in the order opposite to that of its start."""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from seglog.broker.admin import TopicApis
from seglog.broker.changes import TopicChanges
from seglog.broker.configs import ConfigApis
from seglog.broker.dispatch import Dispatch, largest_frame
from seglog.broker.fetch import Fetch
from seglog.broker.ground import BrokerGround
from seglog.broker.group_offsets import GroupOffsets
from seglog.broker.groups import GroupApis
from seglog.broker.identity import Identity
from seglog.broker.metadata import Metadata
from seglog.broker.offsets import Offsets
from seglog.broker.produce import Produce
from seglog.broker.producers import ProducerApis, ProducerIds
from seglog.broker.readiness import StoreStanding
from seglog.broker.requests import Context
from seglog.broker.requests import Handler as ApiHandler
from seglog.broker.sessions import SessionCache
from seglog.broker.settings import Configuration
from seglog.broker.topics import Topic, Topics
from seglog.broker.unsupported import UnsupportedApis
from seglog.cluster.store import MetadataStore
from seglog.coordinators.runtime import GroupCoordinator
from seglog.core.addresses import WILDCARDS, Address, parse_host_port
from seglog.core.broker_config import IN_FLIGHT_BYTES, BrokerConfig
from seglog.core.descriptors import allow_open_files
from seglog.core.errors import InvalidConfigError
from seglog.core.types import MAX_INT32
from seglog.net.connection import Handler
from seglog.net.limits import Shared
from seglog.net.listen import Endpoint
from seglog.net.patience import Patience

if TYPE_CHECKING:
    from seglog.broker.metrics_errors import Errors
    from seglog.broker.neighbours import Neighbours

_log: Final = logging.getLogger("seglog.broker")
_NEVER_IDLE_MS: Final = 1 << 40
_FOR_LOGS: Final = 4096
"""File descriptors that connections leave to logs, or a quarter of all."""


class Serving(ABC):
    """A broker: ``async with`` it. After `start`, ``addresses`` has what clients can connect to."""

    topics: Topics
    changes: TopicChanges
    identity: Identity
    neighbours: Neighbours | None = None

    def __init__(
        self, config: BrokerConfig, *, cluster_id: str | None = None, ground: BrokerGround | None = None
    ) -> None:
        if not config.data_dirs:
            raise InvalidConfigError("log.dirs is not given: a broker needs a directory for its logs")
        self.config = config
        self._cluster_id = cluster_id
        self._ground = ground or BrokerGround()
        self._parts = AsyncExitStack()
        self._descriptors = -1
        self.over = asyncio.Event()
        """Set when the broker cannot go on: ``failure`` says why."""
        self.failure: BaseException | None = None
        self.addresses: list[Address] = []
        self.metrics_address: Address | None = None
        self.store: MetadataStore
        self.groups: GroupCoordinator
        self.configuration: Configuration
        self.shared: Shared

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the first listener, for clients."""
        name = self.addresses[0].name
        address = self.identity.advertised[name]
        return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"

    @property
    @abstractmethod
    def paths(self) -> list[str]:
        """Where its logs are."""

    @abstractmethod
    async def _start(self) -> None:
        """Open everything; what is to be closed goes to ``_parts``."""

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

    def _dispatch(self, ids: ProducerIds, counted: Errors | None = None) -> Dispatch:
        """``counted``: where errors are, if they are."""
        config, topics, changes = self.configuration.current, self.topics, self.changes
        loop = asyncio.get_running_loop()
        sessions = SessionCache(config.max_incremental_fetch_session_cache_slots, now=loop.time, rng=self._ground.rng)
        apis = (
            Metadata(topics, changes, self.identity, self.configuration, self._ground.workers),
            TopicApis(topics, changes, self.identity, self.configuration),
            Offsets(topics, changes),
            ConfigApis(topics, changes, self.configuration, self._took_effect, self.identity),
            ProducerApis(topics, ids),
            GroupApis(self.groups, self.identity),
            GroupOffsets(self.groups, topics),
            UnsupportedApis(self._refused),
        )
        handlers = {key: handler for api in apis for key, handler in api.handlers().items()}
        handlers.update(self._more_handlers())
        most, neighbours = config.fetch_max_bytes, self.neighbours
        if counted is not None:
            return counted.dispatch(topics, sessions, handlers, max_bytes=most, neighbours=neighbours)
        hints = None if neighbours is None else neighbours.hints
        return Dispatch(
            Produce(topics, hints), Fetch(topics, sessions, max_bytes=most, neighbours=neighbours), handlers
        )

    def _refused(self, context: Context, why: str) -> None:
        self.shared.refusals.log(context.client_host, context.listener, why, client_id=context.client_id)

    def _store_standing(self) -> StoreStanding | None:
        """How it stands with the store of its cluster; None for a broker that is alone."""
        return None

    def _more_handlers(self) -> Mapping[int, ApiHandler]:
        """What only this kind of broker answers."""
        return {}

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

    async def _listen(self, dispatch: Handler) -> None:
        config = self.configuration.current
        idle_ms = config.connections_max_idle_ms
        in_flight = config.queued_max_request_bytes
        self.shared = Shared(
            largest=lambda head: largest_frame(head, config.socket_request_max_bytes),
            max_connections=config.max_connections,
            max_connections_per_ip=config.max_connections_per_ip,
            in_flight_bytes=in_flight if in_flight > 0 else max(IN_FLIGHT_BYTES, config.socket_request_max_bytes),
            patience=Patience((idle_ms if idle_ms > 0 else _NEVER_IDLE_MS) / 1000),
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
