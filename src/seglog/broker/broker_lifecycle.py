"""A broker's life among the others: registration, the loss of its session or of a disk, controlled shutdown."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from seglog.broker.broker_storage import DirectoryEvents
from seglog.broker.broker_tasks import BrokerTasks
from seglog.broker.identity import Identity
from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.controller import Controller
from seglog.cluster.membership import Membership
from seglog.cluster.store import StoreError, StoreFailedError
from seglog.core.broker_config import BrokerConfig
from seglog.replication.replicas import Replicas
from seglog.storage.directory.log_dir import LogDir

_log: Final = logging.getLogger("seglog.broker")
HANDOVER_SECONDS: Final = 15.0
"""How long a stopping broker waits until others lead its partitions."""
_STORE_SECONDS: Final = 3.0
"""How long a stopping broker waits for the metadata store to take a change."""


class BrokerLifecycle:
    """`join` the cluster once the broker knows its listeners; it leaves when the broker's ``tasks`` stop."""

    def __init__(
        self,
        config: BrokerConfig,
        view: ClusterView,
        identity: Identity,
        membership: Membership,
        controller: Controller,
        replicas: Replicas,
        events: DirectoryEvents,
        *,
        tasks: BrokerTasks,
    ) -> None:
        self._config = config
        self._view = view
        self._identity = identity
        self._membership = membership
        self._controller = controller
        self._replicas = replicas
        self._events = events
        self._tasks = tasks
        self._is_stopping = False

    async def join(self) -> None:
        """Register, then lead and follow as the cluster says."""
        self._tasks.begin("disks", self._follow_disks())
        self._tasks.at_stop(self._replicas.close)
        await self._replicas.start()
        listeners = {name: address.host_port for name, address in self._identity.advertised.items()}
        await self._membership.update(listeners=listeners)
        self._tasks.at_stop(self._leave)
        await self._register()

    def run(self) -> None:
        """Begin the tasks of a registered broker."""
        self._tasks.begin("membership", self._membership.run())
        self._tasks.begin("controller", self._controller.run())
        self._tasks.begin("replicas", self._replicas.run())
        self._tasks.at_stop(self._replicas.finish)
        self._tasks.at_stop(self._hand_over)

    async def _register(self) -> None:
        """Wait while the store takes no writes: without a broker epoch this broker leads and follows nothing."""
        while True:
            try:
                await self._tasks.unless_over(self._membership.join(self), self._config.cluster_store)
            except StoreFailedError as error:
                if self._tasks.over.is_set():
                    raise
                _log.warning("%s; this broker waits for it", error)
            else:
                return

    async def _hand_over(self) -> None:
        """Let others lead our partitions before the listeners close (KIP-143: controlled shutdown)."""
        self._is_stopping = True
        if not self._config.controlled_shutdown_enable:
            return
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                await self._membership.update(is_stopping=True)
        except (StoreError, TimeoutError) as error:
            reason = str(error) or f"the metadata store did not answer in {_STORE_SECONDS:.0f} s"
            _log.warning("the partitions that this broker leads cannot be handed over: %s", reason)
            return
        if not await self._view.until(lambda: not self._replicas.to_hand_over(), HANDOVER_SECONDS):
            _log.warning("%d partitions are still led here", len(self._replicas.to_hand_over()))

    async def _leave(self) -> None:
        """A store that does not answer must not keep this process: the session then expires."""
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                await self._membership.leave()
        except (StoreError, TimeoutError):
            _log.warning("the session in the metadata store could not be closed; it ends by its timeout")

    # The session: `seglog.cluster.membership.SessionListener`

    def doubted(self) -> None:
        if not self._is_stopping:
            _log.warning(
                "the metadata store has not confirmed the session of node %d: only acks=all is written, and only where "
                "a replica in sync fetches; elections and changes of topics wait",
                self._identity.node_id,
            )
        self._controller.resign()
        self._replicas.doubted()

    def resigned(self) -> None:
        if not self._is_stopping:
            _log.warning("node %d has lost its session in the metadata store", self._identity.node_id)
        self._controller.resign()
        self._replicas.resign()

    def confirmed(self) -> None:
        _log.info("the metadata store confirms the session of node %d", self._identity.node_id)
        self._replicas.confirmed()

    # The disks

    async def _follow_disks(self) -> None:
        """Others lead what is in a directory that has failed; the other directories go on (KIP-112)."""
        failed: set[LogDir] = set()
        while True:
            directory = await self._events.take()
            error = directory.health.failure
            if error is None:
                self._replicas.room_changed(directory)
            elif directory not in failed:
                failed.add(directory)
                _log.critical("%s is offline until the next start: %s", directory.path, error)
                self._replicas.directory_failed(directory)
