"""A broker's surroundings beside the `Ground` of every layer: listeners, and the metadata store."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from seglog.cluster.store import MetadataStore
from seglog.cluster.store_address import open_store
from seglog.cluster.zookeeper_security import PLAIN, ZooKeeperSecurity
from seglog.core.addresses import Address
from seglog.core.clock import Clock
from seglog.core.ground import Ground
from seglog.net.connection import FrameHandler
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.listener import Listener, ListenerSecurity
from seglog.storage.directory.owner_socket import listen_for


class OpenStore(Protocol):
    """As `seglog.cluster.store_address.open_store`."""

    async def __call__(
        self,
        address: str,
        /,
        *,
        clock: Clock,
        session_timeout_ms: int,
        patience_ms: int = 0,
        must_exist: bool = False,
        security: ZooKeeperSecurity = PLAIN,
    ) -> MetadataStore: ...


class MakeListener(Protocol):
    """As `Listener`."""

    def __call__(
        self,
        address: Address,
        handler: FrameHandler,
        quotas: ConnectionQuotas,
        /,
        *,
        security: ListenerSecurity | None = None,
    ) -> Listener: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGround(Ground):
    """``listener`` makes what accepts connections, ``open_store`` opens the metadata store of a cluster by its
    address, and ``owner_socket`` makes the socket of a log directory, or None."""

    listener: MakeListener = Listener
    open_store: OpenStore = open_store
    owner_socket: Callable[[str], socket.socket | None] = listen_for
