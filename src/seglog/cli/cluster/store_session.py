"""The metadata store of a command: its option, and a connection for the time of one action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

import typer

from seglog.cli.options import read_properties
from seglog.cluster.store import MetadataStore, NoSuchStoreError, StoreError
from seglog.cluster.store_address import FORMS, SQLITE, open_store, parse_store
from seglog.cluster.zookeeper_security import PLAIN, ZooKeeperSecurity
from seglog.core.broker_config import BrokerConfig
from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs

T = TypeVar("T")
_SESSION_MS: Final = 10_000
_SECURITY_KEYS: Final = ("zookeeper.", "cluster.store.jaas.")
_BEGIN: Final = "to begin one: seglog cluster up --store "

Store = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="The metadata store: sqlite:FILE or zookeeper://HOST:PORT/NAME.",
        show_default=False,
    ),
]


StoreConfig = Annotated[
    str | None,
    typer.Option(
        "--store-config",
        metavar="FILE",
        help="A broker's properties, of which those for ZooKeeper count: zookeeper.* and cluster.store.jaas.config.",
        show_default=False,
    ),
]


async def with_store(
    address: str, config: str | None, act: Callable[[MetadataStore], Awaitable[T]], *, must_exist: bool = True
) -> T:
    """Open the store, run ``act`` and close the store. ``config`` is the file of `StoreConfig`. Raises `StoreError` or
    `InvalidConfigError`."""
    if must_exist:
        _check_address(address)
    try:
        store = await open_store(
            address,
            clock=SystemClock(),
            session_timeout_ms=_SESSION_MS,
            must_exist=must_exist,
            security=PLAIN if config is None else _security(config),
        )
    except NoSuchStoreError as error:
        raise StoreError(f"{error}; {_BEGIN}{address}") from error
    try:
        return await act(store)
    finally:
        await store.close()


def _security(path: str) -> ZooKeeperSecurity:
    from seglog.broker.security.zookeeper_keys import zookeeper_security

    given = {key: text for key, text in read_properties(path).items() if key.startswith(_SECURITY_KEYS)}
    return zookeeper_security(BrokerConfig.from_mapping(given))


def _check_address(address: str) -> None:
    try:
        where = parse_store(address)
    except InvalidConfigError as error:
        if ":" in address:
            raise
        raise InvalidConfigError(
            f"there is no cluster at {address!r}: the address of a metadata store is {FORMS}; {_BEGIN}ADDRESS"
        ) from error
    if where.kind == SQLITE and not OsFs().exists(where.path):
        raise StoreError(no_cluster(address))


def no_cluster(address: str) -> str:
    """The text of an error, which also says how to begin a cluster."""
    return f"there is no cluster at {address}; {_BEGIN}{address}"
