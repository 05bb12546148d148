"""This broker's membership in the cluster: its session, its registration and its epoch.

A registration is one commit. It raises the counter of epochs, deletes an earlier registration of the same log
directories, and creates the new one, which lasts as long as the session. The compare-and-set on the counter fences what
an earlier run of this broker still had in flight. A `SessionListener` hears of the session. In doubt the broker keeps
its registration and its epoch: only the store can end them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from seglog.cluster.cluster_view import Changes, ClusterView
from seglog.cluster.features import FEATURES, SUPPORTED, check_registration, decode_features
from seglog.cluster.formats import BROKER_EPOCHS, FORMAT, OURS, Formats, check_format, encode_formats, speaks_name
from seglog.cluster.model import (
    GENERATION,
    BrokerRegistration,
    InvalidStateError,
    Member,
    Refusal,
    VersionRange,
    broker_name,
    decode_broker,
    encode,
    with_refusals,
)
from seglog.cluster.store import (
    MISSING,
    Change,
    CommitConflictError,
    CommitStep,
    MetadataStore,
    SessionLostError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreSession,
    UnknownOutcomeError,
    VersionedValue,
)
from seglog.core.errors import LogDirFullError
from seglog.core.ground import Ground

_LOOKS: Final = 10
"""How often a session is checked in its time to live."""
_SESSIONS: Final = 1.5
"""How many session times to wait for a node id that is taken."""
_LEAST_SECONDS: Final = 0.1
_MOST_SECONDS: Final = 2.0

_log: Final = logging.getLogger("seglog.cluster")


_PROOF_BITS: Final = 128


class NodeIdTakenError(StoreError):
    """Another broker is registered with this node id."""


class BrokerInfo(NamedTuple):
    """The registration of this broker. ``listeners``: addresses by listener name; ``directories``: the ids of its log
    directories; ``formats`` and ``features``: those of its release."""

    node_id: int
    listeners: Mapping[str, str]
    rack: str | None
    directories: tuple[str, ...]
    formats: Formats = OURS
    features: Mapping[str, VersionRange] = SUPPORTED


class SessionListener(Protocol):
    """Hears of a broker's session, on the event loop and at once."""

    def doubted(self) -> None:
        """The store has not confirmed the session for too long."""

    def resigned(self) -> None:
        """The session is over."""

    def confirmed(self) -> None:
        """The broker is registered, and the session is certain."""


class Membership:
    """Call `join`, then `run` as long as the broker runs, then `leave`.

    ``me`` is None before the first registration, and between the loss of a session and the next registration.
    ``kept_since`` is called in a thread, with the next epoch and that of the last registration (None: there was none).
    It stores the new epoch and returns the epoch since which nothing was lost.
    """

    _listener: SessionListener

    def __init__(
        self,
        store: MetadataStore,
        view: ClusterView,
        registration: BrokerInfo,
        *,
        session_timeout_ms: int,
        kept_since: Callable[[int, int | None], int],
        ground: Ground,
    ) -> None:
        self.me: Member | None = None
        self.session: StoreSession | None = None
        self._store = store
        self._view = view
        self._timeout_ms = session_timeout_ms
        self._kept_since = kept_since
        self._clock = ground.clock
        self._workers = ground.workers
        self._formats = registration.formats
        self._name = broker_name(registration.node_id)
        self._epoch_name = f"{BROKER_EPOCHS}-{registration.node_id}"
        """The epoch of the last registration of this node id. Log directories that know only earlier ones are a former
        copy."""
        self._wanted = BrokerRegistration(
            node_id=registration.node_id,
            epoch=0,
            kept_since=0,
            listeners=dict(registration.listeners),
            rack=registration.rack,
            directories=registration.directories,
            reports=True,
            features=registration.features,
            proof=f"{ground.rng.getrandbits(_PROOF_BITS):0{_PROOF_BITS // 4}x}",
        )
        """The registration that the store should have; its epochs are those of the last registration."""
        self.proof = self._wanted.proof
        """`BrokerRegistration.proof` of this broker."""
        self._is_written = True
        self._is_relied_on = False
        """The listener was told `confirmed`, and not `resigned` since."""
        self._is_in_doubt = False
        """The listener was told `doubted`, and neither of the others since."""
        self._uncertain_since: float | None = None
        self._uncertain_before = 0.0
        """Seconds of earlier doubts."""
        self._has_left = False
        self._writing = asyncio.Lock()
        self._woken = asyncio.Event()

    @property
    def offline(self) -> tuple[str, ...]:
        """Partitions whose log directory has failed, by the names of the registration."""
        return self._wanted.offline

    @property
    def is_certain(self) -> bool:
        """No other client can have seen the end of the session."""
        return self.me is not None and self.session is not None and self.session.is_certain

    @property
    def uncertain_seconds(self) -> float:
        """How long the store has not confirmed the registration; 0 while it does."""
        return 0.0 if self._uncertain_since is None else self._clock.monotonic() - self._uncertain_since

    @property
    def uncertain_seconds_total(self) -> float:
        """The sum of these times since the first registration."""
        return self._uncertain_before + self.uncertain_seconds

    # Joining

    async def join(self, listener: SessionListener) -> None:
        """Register in a new epoch; ``listener`` hears of the session from now on. Raises `NodeIdTakenError` if another
        broker still has this node id when the session of a dead one would be over, `StoreFailedError` if the store
        fails that long, and the errors of ``kept_since``: then there is no registration."""
        self._listener = listener
        await self._join()

    async def _join(self) -> None:
        until = self._clock.monotonic() + self._timeout_ms / 1000 * _SESSIONS
        is_told = False
        async with self._writing:
            self.me = None
            while not await self._register_before(until, is_told=is_told):
                is_told = True
                await asyncio.sleep(_LEAST_SECONDS)
        self.check()

    async def _register_before(self, until: float, *, is_told: bool) -> bool:
        """Try to register; False: try again. A broker with a replaced disk comes back with other log directories while
        its old session lasts, and a ZooKeeper server that is busy or was just lost opens no session."""
        try:
            return await self._register()
        except (NodeIdTakenError, StoreFailedError) as error:
            left = until - self._clock.monotonic()
            if left <= 0:
                raise
            if not is_told:
                _log.warning("%s; retrying for %.0f s", error, left)
            return False

    async def _register(self) -> bool:
        """Register. False: the session has ended at once."""
        session = await self._store.session(self._timeout_ms, self._woken.set)
        try:
            value = await self._enter(session)
        except SessionLostError:
            value = None
        except BaseException:
            await _give_up(session)
            raise
        if value is None or not session.is_alive or self._has_left:
            await _give_up(session)
            return self._has_left
        self.session, self._is_written = session, value == encode(self._wanted)
        self.me = Member(self._wanted.node_id, self._wanted.epoch)
        self._view.note(self._name, value, 0)
        _log.info("broker %d is registered in epoch %d", *self.me)
        return True

    async def _enter(self, session: StoreSession) -> bytes | None:
        """Commit the registration and return it; None if it is gone again. Raises `FormatError` and `FeatureError`."""
        speaks = speaks_name(self._wanted.node_id)
        while True:
            names = [BROKER_EPOCHS, self._epoch_name, self._name, FORMAT, speaks, GENERATION, FEATURES]
            found = await self._store.get_many(names)
            features = found.get(FEATURES)
            check_registration(decode_features(features and features.value), self._wanted.features)
            counter, former = found.get(BROKER_EPOCHS), found.get(self._name)
            epoch = count(BROKER_EPOCHS, counter) + 1
            steps: list[CommitStep] = [
                Change(BROKER_EPOCHS, b"%d" % epoch, MISSING if counter is None else counter.version),
                check_format(found.get(FORMAT), self._formats),
            ]
            if GENERATION not in found:  # only brokers of the first release were in this store
                steps.append(Change(GENERATION, b"0", MISSING))
            if former is not None:
                self._check_former(former)
                steps.append(Change(self._name, None, former.version))
            if speaks in found:
                steps.append(Change(speaks, None, found[speaks].version))
            last = found.get(self._epoch_name)
            last_epoch = None if last is None else count(self._epoch_name, last)
            steps.append(Change(self._epoch_name, b"%d" % epoch, MISSING if last is None else last.version))
            kept_since = await self._workers.run(partial(self._kept_since, epoch, last_epoch))
            self._wanted = replace(self._wanted, epoch=epoch, kept_since=kept_since)
            value = encode(self._wanted)
            steps.append(Change(self._name, value, MISSING, session))
            steps.append(Change(speaks, encode_formats(self._formats), MISSING, session))
            try:
                await self._store.commit(steps)
            except CommitConflictError:
                continue
            except UnknownOutcomeError:
                # A registration in this epoch is ours: the counter gives out each number once.
                seen = await self._store.get(self._name)
                if seen is None or seen.value != value:
                    return None
            return value

    def _check_former(self, former: VersionedValue) -> None:
        """Raise unless a former registration is of these directories. Its broker no longer runs: only one process can
        have them open."""
        broker = self._there(former)
        assert broker is not None
        if not set(broker.directories) & set(self._wanted.directories):
            raise NodeIdTakenError(
                f"node id {broker.node_id} is taken by the broker at {_where(broker)}; the one at "
                f"{_where(self._wanted)} has other log directories and needs another node.id"
            )
        _log.info("the registration of epoch %d of broker %d is replaced", broker.epoch, broker.node_id)

    # While registered

    async def run(self) -> None:
        """Check the session and join again when it is lost, until cancelled, until `leave`, or until the store is
        closed. Raises `StoreError` if another broker has taken this node id."""
        self._view.listeners.append(self._seen)
        every = max(self._timeout_ms / 1000 / _LOOKS, _LEAST_SECONDS)
        checking = asyncio.get_running_loop().create_task(self._check_again(every), name="seglog-session-check")
        try:
            while not self._has_left:
                self.check()
                if checking.done():
                    checking.result()  # it ends with an error only
                if self.me is None:
                    await self._join_again()
                    continue
                self._woken.clear()
                try:
                    if self._has_gone():
                        await self._look_for_us()
                    elif not self._is_written:
                        await self.update()
                except StoreFailedError as error:
                    node_id = self._wanted.node_id  # `me` may be gone
                    _log.warning("the registration of broker %d cannot be updated: %s", node_id, error)
                await self._wait(every)
        except StoreClosedError:
            self._lose()
        finally:
            self._view.listeners.remove(self._seen)
            checking.cancel()

    async def _check_again(self, every: float) -> None:
        """Check the session also while `run` waits for the store."""
        while True:
            await asyncio.sleep(every)
            self.check()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _seen(self, changes: Changes) -> None:
        if self.me is not None and self.me.node_id in changes.brokers and self._has_gone():
            self._woken.set()

    def _has_gone(self) -> bool:
        """Whether the view does not have this registration."""
        if self.me is None:
            return False
        seen = self._view.brokers.get(self.me.node_id)
        return seen is None or seen.epoch != self.me.epoch

    def check(self) -> None:
        """Check the session and tell the listener of a change. `run` does so at intervals, but after a pause of the
        process requests are handled before timers: call this before a decision that depends on the session."""
        if self.me is None:
            return
        if self.session is None or not self.session.is_alive:
            _log.warning("the session of broker %d in epoch %d has ended", *self.me)
            self._lose()
        elif not self.session.is_certain:
            self._doubt()
        elif not self._is_relied_on or self._is_in_doubt:
            self._confirm()

    def _doubt(self) -> None:
        if self._is_relied_on and not self._is_in_doubt:
            self._is_in_doubt = True
            self._note_uncertain()
            self._listener.doubted()

    def _note_uncertain(self) -> None:
        if self._uncertain_since is None:
            self._uncertain_since = self._clock.monotonic()

    def _confirm(self) -> None:
        self._uncertain_before += self.uncertain_seconds
        self._uncertain_since = None
        self._is_relied_on, self._is_in_doubt = True, False
        self._listener.confirmed()

    def _lose(self) -> None:
        self.me = None
        if self._is_relied_on:
            self._is_relied_on = self._is_in_doubt = False
            self._note_uncertain()
            self._listener.resigned()

    async def _join_again(self) -> None:
        seconds = _LEAST_SECONDS
        while not self._has_left:
            try:
                await self._join()
            except (StoreFailedError, LogDirFullError) as error:
                _log.warning("broker %d cannot join again yet: %s", self._wanted.node_id, error)
                await asyncio.sleep(seconds)
                seconds = min(seconds * 2, _MOST_SECONDS)
            else:
                return

    async def _look_for_us(self) -> None:
        """The session is alive and the view does not have this registration: it was removed, or another broker has the
        node id."""
        found = await self._store.get(self._name)
        me, session = self.me, self.session
        if me is None or session is None:
            return
        other = self._there(found)
        if other is not None and other.epoch == me.epoch:
            return
        _log.warning("the registration of broker %d in epoch %d was removed", *me)
        self._lose()
        await session.close()
        if other is not None:
            raise StoreError(f"node id {me.node_id} was taken by the broker at {_where(other)} in epoch {other.epoch}")

    def _there(self, found: VersionedValue | None) -> BrokerRegistration | None:
        """Decode a registration. Raises `StoreError` if a later seglog wrote it."""
        try:
            return None if found is None else decode_broker(self._name, found.value)
        except InvalidStateError as error:
            raise NodeIdTakenError(f"node id {self._wanted.node_id} is taken: {error}") from error

    def report_offline(self, partitions: Sequence[str], refused: Mapping[str, Refusal]) -> None:
        """The broker cannot serve these partitions, by the names of a registration, some of them because it refuses
        them: `run` writes that."""
        self._wanted = with_refusals(replace(self._wanted, offline=tuple(partitions)), refused)
        self._is_written = False
        self._woken.set()

    async def update(self, **changes: Any) -> None:
        """Change fields of the registration, for this session and later ones. Raises `StoreFailedError` if the store
        fails for as long as a session lasts; `run` retries."""
        self._wanted = replace(self._wanted, **changes)
        self._is_written = False
        until = self._clock.monotonic() + self._timeout_ms / 1000
        while self.me is not None and not self._is_written:
            try:
                async with self._writing:
                    await self._write()
            except StoreFailedError:
                if self._clock.monotonic() > until:
                    raise
                await asyncio.sleep(_LEAST_SECONDS)

    async def _write(self) -> None:
        """Compare and set the registration, if there is one; otherwise the next one has the change."""
        me = self.me
        if me is None or self._is_written:
            return
        found = await self._store.get(self._name)
        if me != self.me:
            return
        there = self._there(found)
        if found is None or there is None or there.epoch != me.epoch:
            self._is_written = True  # it is gone: `run` notices that, and the next registration is right
            self._woken.set()
            return
        wanted = self._wanted
        value, version = encode(wanted), found.version
        if value != found.value:
            try:
                version = await self._store.cas(self._name, value, version)
            except (CommitConflictError, UnknownOutcomeError):
                return  # read it again
        if me == self.me:
            self._is_written = wanted is self._wanted
            self._view.note(self._name, value, version)

    async def leave(self) -> None:
        """End the session, and with it the registration."""
        self._has_left = True
        session, self.session = self.session, None
        self._lose()
        self._woken.set()
        if session is not None:
            await session.close()


def count(name: str, counter: VersionedValue | None) -> int:
    """Return the value of a counter in the store; 0 if it has none. Raises `StoreError` if it is not a number."""
    if counter is None:
        return 0
    if not counter.value.isdigit():
        raise StoreError(f"{name} in the metadata store is {counter.value[:20]!r}, not a number")
    return int(counter.value)


async def _give_up(session: StoreSession) -> None:
    """Close a session. If the store fails, the session ends by its timeout. The error must not replace a cancellation:
    the task would run on, and the broker would never stop."""
    with suppress(StoreError):
        await session.close()


def _where(broker: BrokerRegistration) -> str:
    """Describe a broker in an error message."""
    listeners = ", ".join(broker.listeners.values()) or "an unknown address"
    return f"{listeners} (log directories {', '.join(broker.directories) or 'unknown'})"
