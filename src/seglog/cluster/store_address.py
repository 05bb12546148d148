"""Addresses of metadata stores."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from seglog.cluster.store import MetadataStore, NoSuchStoreError
from seglog.cluster.zookeeper_security import PLAIN, ZooKeeperSecurity
from seglog.core.clock import Clock
from seglog.core.errors import InvalidConfigError
from seglog.core.extras import require
from seglog.core.fs import OsFs

SQLITE: Final = "sqlite"
ZOOKEEPER: Final = "zookeeper"
FORMS: Final = "sqlite:/path/to/file, or zookeeper://HOST:PORT,HOST:PORT/NAME-OF-THE-CLUSTER"
_ZOOKEEPER_PORT: Final = 2181
_SERVER: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9_.-]+))(?::([0-9]{1,5}))?")
_CLUSTER: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")


class StoreAddress(NamedTuple):
    """A kind; for `SQLITE` a file, for `ZOOKEEPER` servers and the name of a cluster."""

    kind: str
    path: str = ""
    servers: tuple[str, ...] = ()
    cluster: str = ""


def parse_store(address: str) -> StoreAddress:
    """Parse an address. Raises `InvalidConfigError`.

    >>> parse_store("sqlite:/var/lib/seglog/metadata").path
    '/var/lib/seglog/metadata'
    >>> parse_store("zookeeper://one,[::1]:2182/logs")
    StoreAddress(kind='zookeeper', path='', servers=('one:2181', '[::1]:2182'), cluster='logs')
    """
    kind, _, rest = address.partition(":")
    if kind == SQLITE and rest and not rest.startswith("//"):
        return StoreAddress(SQLITE, path=rest)
    if kind != ZOOKEEPER or not rest.startswith("//"):
        raise InvalidConfigError(f"{address!r} is not the address of a metadata store: {FORMS}")
    servers, _, cluster = rest[2:].partition("/")
    if not _CLUSTER.fullmatch(cluster):
        raise InvalidConfigError(
            f"{address!r} needs the cluster's name after its servers, of letters, digits, '.', '_' and '-': {FORMS}"
        )
    return StoreAddress(
        ZOOKEEPER, servers=tuple(_server(text, address) for text in servers.split(",")), cluster=cluster
    )


def _server(text: str, address: str) -> str:
    match = _SERVER.fullmatch(text)
    port = int(match[3] or _ZOOKEEPER_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise InvalidConfigError(f"{text!r} in {address!r} is not the HOST:PORT of a ZooKeeper server: {FORMS}")
    return f"{f'[{match[1]}]' if match[1] else match[2]}:{port}"


async def open_store(
    address: str,
    *,
    clock: Clock,
    session_timeout_ms: int,
    patience_ms: int = 0,
    must_exist: bool = False,
    security: ZooKeeperSecurity = PLAIN,
) -> MetadataStore:
    """Open the store at ``address``. If it is missing, create it, or raise `NoSuchStoreError` if it ``must_exist``.
    ``security`` is that of connections to ZooKeeper. Raises `InvalidConfigError`; `StoreFailedError` if it cannot be
    opened, or if no server of ZooKeeper answers within the longer of ``session_timeout_ms`` and ``patience_ms``;
    `StoreRefusedError` if all refuse this client; `MissingExtraError` without kazoo."""
    where = parse_store(address)
    if where.kind == SQLITE:
        if must_exist and not OsFs().exists(where.path):
            raise NoSuchStoreError(f"{where.path}: this metadata store does not exist")
        from seglog.cluster.sqlite_store import SqliteStore

        return await SqliteStore.open(where.path, clock=clock)
    require("kazoo.client", "zookeeper", purpose="a cluster on ZooKeeper")
    from seglog.cluster.zookeeper_store import ZooKeeperStore

    patience_ms = max(patience_ms, session_timeout_ms)
    return await ZooKeeperStore.open(
        where.servers,
        where.cluster,
        clock=clock,
        session_timeout_ms=session_timeout_ms,
        patience_ms=patience_ms,
        must_exist=must_exist,
        security=security,
    )
