"""The metadata store: a small tree of versioned values, with compare-and-set, watches and sessions.

Names are paths without a leading slash (``brokers/1``); a name's children are the names directly below it. What a
session has made goes when the session ends, or when its process is silent for longer than its time to live. It is for
metadata only: records, group offsets and transactions are in topics.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple, Protocol

from seglog.core.errors import SeglogError

ANY_VERSION: Final = -1
MAX_VALUE_BYTES: Final = 1 << 20
"""ZooKeeper takes no more."""
_NAME: Final = re.compile(r"[^/\x00]{1,255}(/[^/\x00]{1,255}){0,15}")


Names = list[str]


class StoreError(SeglogError):
    """The store did not do what it was asked to."""


class NameExistsError(StoreError):
    """There is a value of that name already."""


class NoSuchNameError(StoreError):
    """There is no value of that name."""


class VersionChangedError(StoreError):
    """Someone else has changed the value since it was read."""


class SessionLostError(StoreError):
    """The session has ended: what it had made is gone."""


class StoreClosedError(StoreError):
    """The store was closed."""


class StoreFailedError(StoreError):
    """The store's own disk or connection fails."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = True


class Versioned(NamedTuple):
    """A value; its version is 0 when it is created and grows by one with each change."""

    value: bytes
    version: int


class Session(Protocol):
    """A lease of this process on what it makes with it, renewed until it is closed."""

    @property
    def is_alive(self) -> bool: ...
    async def close(self) -> None:
        """End it, and with it what it has made."""


class MetadataStore(Protocol):
    """All methods are called from the event loop that the store was opened in, and never block it."""

    async def get(self, name: str) -> Versioned | None: ...

    async def list(self, name: str) -> Names:
        """The last parts of the names of all children, sorted. "" has those at the top."""

    async def create(self, name: str, value: bytes, session: Session | None = None) -> int:
        """A new value, on the disk when this returns; its version. `NameExistsError`, `SessionLostError`."""

    async def cas(self, name: str, value: bytes, version: int) -> int:
        """Change a value whose version is ``version`` (or `ANY_VERSION`), on the disk when this returns; its new
        version. `NoSuchNameError`, `VersionChangedError`."""

    async def delete(self, name: str, version: int = ANY_VERSION) -> None:
        """`NoSuchNameError`, `VersionChangedError`. Children stay."""

    def watch(self, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` on the loop soon after the value or anything below it has changed, whoever did it, until the
        function that is returned is called. Several changes may be told of at once."""

    async def session(self, time_to_live_ms: int, lost: Callable[[], None]) -> Session:
        """A new session; ``lost`` is called on the loop if it ends without being closed."""

    async def close(self) -> None:
        """End all sessions and close. Calls that are under way are done before."""


def check_name(name: str) -> str:
    """``name`` if it may be one, else ValueError.

    >>> check_name("config/topics/web")
    'config/topics/web'
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name in a metadata store")
    return name


def check_value(value: bytes) -> bytes:
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"a value of {len(value)} bytes: at most {MAX_VALUE_BYTES} are metadata")
    return value
