"""Transactions in ZooKeeper whose outcome is known.

A connection that breaks during a transaction says nothing about its outcome. So every transaction also writes its
number into a node of its writer, which lasts as long as the writer's session. After a lost connection the writer reads
that node in the same session. ZooKeeper answers a session's requests in order, and accepts nothing more from a
connection that the session has left (SESSION_MOVED). So if the number is not there, it never will be, and the
transaction is sent again. The outcome stays unknown only if the session has ended too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from seglog.cluster.store import ANY_VERSION, SessionLostError, StoreError, StoreFailedError, UnknownOutcomeError
from seglog.cluster.zookeeper_connection import (
    NO_NODE,
    CheckOp,
    ConnectionLostError,
    CreateOp,
    OpRefusedError,
    SessionEndedError,
    SetDataOp,
    Znode,
    ZooKeeperConnection,
    ZooKeeperOp,
    ZooKeeperRefusedError,
)

_AT_ONCE: Final = 16
"""Transactions in flight. Each needs its own node: in a shared one, the last number would hide the others."""
_RETRY_SECONDS: Final = 0.05
_FAILURES: Final = (TimeoutError, StoreError, ZooKeeperRefusedError, ConnectionLostError, SessionEndedError)


class _Slot:
    """A node for the numbers of successive transactions. ``is_in_doubt`` while one may still arrive."""

    __slots__ = ("is_in_doubt", "is_made", "number", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.number = 0
        self.is_made = False
        self.is_in_doubt = False

    def next_stamp(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def made(self) -> None:
        self.is_made = True

    def sent(self) -> None:
        self.is_in_doubt = True

    def settled(self, *, is_gone: bool = False) -> None:
        """No transaction is under way. ``is_gone``: the node has ended with its session."""
        self.is_in_doubt = False
        self.is_made = self.is_made and not is_gone


class ZooKeeperWriter:
    """``connected`` waits for the connection. With an ``anchor``, a node that lasts as long as the session, nothing is
    written after that session's end; without one, a new session continues."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        path: str,
        address: str,
        connected: Callable[[], Awaitable[None]],
        seconds: float,
        *,
        anchor: str | None = None,
    ) -> None:
        self._connection = connection
        self._path = path
        self._address = address
        self._connected = connected
        self._seconds = seconds
        self._anchor = anchor
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._free: list[_Slot] = []
        self._made = 0

    async def commit(self, operations: Sequence[ZooKeeperOp]) -> list[int]:
        """Return the new version for each `SetDataOp`, and 0 for the others. Raises `OpRefusedError`;
        `StoreFailedError` if nothing was done; `UnknownOutcomeError`; `SessionLostError` with an anchor."""
        await self._connected()  # without a connection all fail together, not one after the other
        async with self._room:
            if self._free:
                slot = self._free.pop()
            else:
                self._made += 1
                slot = _Slot(f"{self._path}-{self._made}")
            try:
                async with asyncio.timeout(2 * self._seconds):
                    return await self._commit(slot, operations)
            except _FAILURES as error:
                why = str(error) or "no answer"
                has_gone = isinstance(error, SessionLostError) and all(map(_goes_with_session, operations))
                if slot.is_in_doubt and not has_gone:
                    raise UnknownOutcomeError(f"{self._address}: {why}; a change was in flight") from error
                if isinstance(error, StoreError):
                    raise
                raise StoreFailedError(f"{self._address}: {why}") from error
            finally:
                if not slot.is_in_doubt:
                    self._free.append(slot)

    async def _commit(self, slot: _Slot, operations: Sequence[ZooKeeperOp]) -> list[int]:
        stamp = slot.next_stamp()
        while True:
            await self._connected()
            try:
                if not slot.is_made:
                    await self._make(slot)
                slot.sent()
                results = await self._connection.transact([SetDataOp(slot.path, stamp, ANY_VERSION), *operations])
            except OpRefusedError as error:
                slot.settled(is_gone=error.index == 0)
                if error.index > 0:
                    raise OpRefusedError(error.index - 1, error.reason) from error
                # The slot's session has ended; with an anchor, `_make` raises that next.
            except SessionEndedError as error:
                slot.settled(is_gone=True)
                if self._anchor is not None:
                    raise SessionLostError(f"the session in {self._address} has ended") from error
                await asyncio.sleep(_RETRY_SECONDS)
            except ConnectionLostError:
                if slot.is_in_doubt:
                    node = await self._outcome(slot)
                    if node is not None and node.value == stamp:
                        return await self._results(slot, operations, node.transaction)
                    slot.settled()
            except ZooKeeperRefusedError:
                slot.settled()
                raise
            else:
                slot.settled()
                return results[1:]

    async def _make(self, slot: _Slot) -> None:
        if self._anchor is None:
            await self._connection.make(slot.path, b"0", is_ephemeral=True)
        else:
            try:
                await self._connection.transact(
                    [CheckOp(self._anchor, ANY_VERSION), CreateOp(slot.path, b"0", is_ephemeral=True)]
                )
            except OpRefusedError as error:
                if error.reason == NO_NODE:
                    raise SessionLostError(f"the session in {self._address} has ended") from error
        slot.made()

    async def _outcome(self, slot: _Slot) -> Znode | None:
        """Return the slot's node after a lost connection. Raises `UnknownOutcomeError` if it is gone with its
        session."""
        try:
            node = await self._read(slot.path)
        except SessionEndedError:
            node = None
        if node is None and self._anchor is not None:
            raise SessionLostError(f"the session in {self._address} has ended")
        if node is None:
            raise UnknownOutcomeError("the connection was lost, and then the session")
        return node

    async def _read(self, path: str) -> Znode | None:
        while True:
            await self._connected()
            try:
                await self._connection.sync(path)
                (node,) = await self._connection.read([path])
            except ConnectionLostError:
                continue
            return node

    async def _results(self, slot: _Slot, operations: Sequence[ZooKeeperOp], transaction: int) -> list[int]:
        """Return the results of a transaction whose answer was lost."""
        results = []
        for one in operations:
            if not isinstance(one, SetDataOp):
                results.append(0)
            elif one.version != ANY_VERSION:
                results.append(one.version + 1)
            else:
                node = await self._read(one.path)
                if node is None or node.transaction != transaction:
                    raise UnknownOutcomeError("the change was made, and then another one")
                results.append(node.version)
        slot.settled()
        return results


def _goes_with_session(operation: ZooKeeperOp) -> bool:
    """Whether nothing of it outlasts the session, whether it was done or not."""
    return isinstance(operation, CheckOp) or (isinstance(operation, CreateOp) and operation.is_ephemeral)
