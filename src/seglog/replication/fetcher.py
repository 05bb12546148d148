"""Fetches from one leader every partition that this broker follows there (``AbstractFetcherThread``).

It has one connection, one fetch session and one request at a time. A request names the log ends of the followed
partitions; the answer has the records after them, or points of divergence. Partitions without news are in neither and
cost nothing.

A request may wait at the leader for ``replica.fetch.wait.max.ms``. A partition that is added meanwhile must not wait
that long, since producers with acks=all would wait too. A leader that begins to lead it answers at once; if no answer
arrives a moment later, the fetcher closes the connection and starts a new session with the partition, unless that names
too many others. While more partitions may follow, as after the loss of a broker, requests wait only `_SETTLING_MS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from seglog.cluster.model import BrokerRegistration, Member
from seglog.core.addresses import parse_host_port
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import (
    InvalidRequestError,
    LogClosedError,
    LogDirOfflineError,
    RequestFailedError,
    SeglogError,
)
from seglog.core.ground import Ground
from seglog.core.types import Buffer
from seglog.net.peer_connection import PeerConnection, PeerConnectionLostError
from seglog.protocol import replica_fetch
from seglog.protocol.apis import ApiKey
from seglog.protocol.replica_fetch import FetchResponse, RequestHead
from seglog.replication.fetch_session_handler import NO_SESSION, SESSION_ERRORS, FetchSessionHandler, PartitionKey
from seglog.replication.leader_offsets import ask_offsets
from seglog.replication.log_changes import LogChanges
from seglog.replication.replica import Replica, ReplicaAnswer
from seglog.replication.throttles import ReplicationThrottle
from seglog.storage.directory.log_changes import LogChange, StartAt
from seglog.storage.log.epochs import EpochEnd

_logger: Final = logging.getLogger("seglog.replication")
OFFSET_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)
_FIRST_BACKOFF_MS: Final = 50
_LOGGED_FAILURE: Final = 6
_LOGGED_SECONDS: Final = 2.0
"""A connection that the leader has ended is logged after so long without an answer. A leader that stops hands its
partitions over, and a follower may learn that a moment after the connection has ended."""
_FIRST_WAIT_MS: Final = 20
"""A leader may learn a moment after its followers that it leads. A follower that asks too early must not lose a second
by that."""
_PATIENCE_MS: Final = 20
"""How long an answer may take before the fetcher closes the connection for a new partition."""
_OTHERS: Final = 4
"""How many partitions a new session may name for each one that has changed."""
_SETTLING_MS: Final = 50
_TURN_SECONDS: Final = 0.005
"""How long answers are applied before other tasks get a turn."""
_HEADS_BYTES: Final = 16 << 20
"""Room for the fields between the records of an answer: some hundred bytes per partition."""


class CurrentMember(Protocol):
    """`seglog.cluster.membership.Membership`: this broker's registration, or None."""

    @property
    def me(self) -> Member | None: ...
    @property
    def proof(self) -> str: ...


class FetcherConfig(NamedTuple):
    """Kafka's keys. A producer cannot send a batch larger than ``socket_request_max_bytes``; a batch always comes
    whole."""

    replica_fetch_max_bytes: int = 1 << 20
    replica_fetch_response_max_bytes: int = 10 << 20
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    replica_socket_timeout_ms: int = 30_000
    socket_request_max_bytes: int = 100 << 20


class PartitionFetchState:
    """A partition that is followed in ``leader_epoch``, and its errors. After ``failures`` in a row, the last of which
    was ``error``, it is not fetched before ``waits_until``, in seconds (0: it does not wait)."""

    __slots__ = ("error", "failures", "leader_epoch", "replica", "starts_again", "waits_until")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.leader_epoch = replica.leader_epoch
        self.waits_until = 0.0
        self.failures = 0
        self.error = ""
        self.starts_again = False
        """The log starts where the answer begins that is taken a second time."""

    def failed(self, error: str, now: float, most_ms: int) -> bool:
        """Wait longer after each failure. Return True once, when the failures have lasted long enough to be logged:
        the first ones come from leaders that do not know yet that they lead."""
        self.waits_until = now + _backoff_ms(_FIRST_WAIT_MS, self.failures, most_ms) / 1000
        self.failures += 1
        self.error = error
        return self.failures == _LOGGED_FAILURE

    def hold(self, until: float) -> None:
        """Do not fetch it before: its throttle is used up."""
        self.waits_until = until

    def retry(self) -> None:
        """Fetch it again: the backoff is over."""
        self.waits_until = 0.0

    def succeeded(self) -> None:
        self.failures = 0
        self.error = ""


class _Wanted(NamedTuple):
    """A change of a followed log, and the answer that requires it; None if it was an answer to another request."""

    key: PartitionKey
    followed: PartitionFetchState
    change: LogChange
    answer: ReplicaAnswer | None
    records: Buffer


def _backoff_ms(first_ms: int, failures: int, most_ms: int) -> int:
    """Return a time that doubles with each failure.

    >>> [_backoff_ms(20, failures, 100) for failures in range(4)]
    [20, 40, 80, 100]
    """
    return min(first_ms << min(failures, 16), most_ms)


class Fetcher:
    """Fetches from the broker ``leader`` at its listener of that name. While this broker is not registered, it fetches
    nothing.

    `follow` and `unfollow` take effect with the next request; an answer that comes later is ignored.
    """

    def __init__(
        self,
        leader: BrokerRegistration,
        listener: str,
        membership: CurrentMember,
        config: FetcherConfig | None = None,
        *,
        changes: LogChanges,
        ground: Ground,
        throttle: ReplicationThrottle | None = None,
    ) -> None:
        self.leader = leader
        self._listener = listener
        self._membership = membership
        self._config = config or FetcherConfig()
        self._now = ground.clock.monotonic
        self._dial = ground.dial
        self._workers = ground.workers
        self._changes = changes
        self._throttle = throttle
        self._followed: dict[PartitionKey, PartitionFetchState] = {}
        self._changed: dict[PartitionKey, None] = {}
        """Partitions to check before the next request."""
        self._waiting: dict[PartitionKey, PartitionFetchState] = {}
        self._session = FetchSessionHandler()
        self._link: PeerConnection | None = None
        self._something = asyncio.Event()
        self._requests = 0
        self._answer_due = 0.0
        self._followed_at = -1e9
        self._hung_up = False
        self._failures = 0
        self._is_logged = False
        self._answered_at = self._now()

    def __len__(self) -> int:
        """The number of followed partitions."""
        return len(self._followed)

    @property
    def is_connected(self) -> bool:
        return self._link is not None and not self._link.is_closed

    # Following

    def follow(self, replica: Replica) -> None:
        """Follow the replica in its current epoch. Nothing changes if it is followed in that epoch already."""
        key = (replica.topic_id.bytes, replica.topic_partition.partition)
        followed = self._followed.get(key)
        if followed is not None and followed.replica is replica and followed.leader_epoch == replica.leader_epoch:
            return
        self._waiting.pop(key, None)
        self._followed[key] = PartitionFetchState(replica)
        self._changed[key] = None
        self._something.set()
        if self._session.has(key, replica.leader_epoch, replica.log.log_end_offset):
            return  # the leader still has it in its session
        now = self._followed_at = self._now()
        if self._answer_due > now + _SETTLING_MS / 1000 and not self._hung_up:
            asyncio.get_running_loop().call_later(_PATIENCE_MS / 1000, self._hang_up, self._requests)

    def unfollow(self, key: tuple[UUID, int]) -> None:
        """Stop following a partition, if it is followed."""
        topic_id, number = key
        self._drop((topic_id.bytes, number))

    def _drop(self, key: PartitionKey) -> None:
        self._waiting.pop(key, None)
        if self._followed.pop(key, None) is not None:
            self._changed[key] = None

    def _hang_up(self, request: int) -> None:
        """Close the connection if this request is still waiting and no byte of its answer has arrived, and if the new
        session costs no more than the change: otherwise each new partition would make a broker name all that it has."""
        link = self._link
        if len(self._followed) > _OTHERS * len(self._changed):
            return
        if link is not None and self._requests == request and self._answer_due and not link.is_receiving:
            self._hung_up = True
            link.close()

    # The loop

    async def run(self) -> None:
        """Fetch until cancelled. Only an unexpected error ends it."""
        try:
            while True:
                await self._until_needed()
                if not self._failures:
                    self._answered_at = self._now()
                try:
                    await self._fetch_from(await self._connect())
                except (SeglogError, OSError) as error:
                    if self._hung_up:
                        self._hung_up = False
                        continue
                    most_ms = self._config.replica_fetch_backoff_ms
                    milliseconds = _backoff_ms(_FIRST_BACKOFF_MS, self._failures, most_ms)
                    self._note(error)
                    self._something.clear()
                    await self._pause(milliseconds)
                finally:
                    self._hang_up_now()
        finally:
            self._hang_up_now()

    def _hang_up_now(self) -> None:
        link, self._link = self._link, None
        self._answer_due = 0.0
        if link is not None:
            link.close()
        self._session.restart()

    def _note(self, error: Exception) -> None:
        self._failures += 1
        link = self._link
        may_stop = isinstance(error, ConnectionError) if link is None else link.is_ended_by_peer
        if not self._is_logged and (not may_stop or self._now() - self._answered_at >= _LOGGED_SECONDS):
            self._is_logged = True
            why = str(error) or type(error).__name__  # TimeoutError has no text
            _logger.warning("fetching from broker %d fails, and is retried: %s", self.leader.node_id, why)

    def _note_success(self) -> None:
        self._failures, self._answered_at = 0, self._now()
        if self._is_logged:
            self._is_logged = False
            _logger.info("fetching from broker %d works again", self.leader.node_id)

    async def _pause(self, milliseconds: float) -> None:
        """Wait until the time is over or a partition is added."""
        with suppress(TimeoutError):
            async with asyncio.timeout(milliseconds / 1000):
                await self._something.wait()

    async def _until_needed(self) -> None:
        """Wait until this broker is registered and there is something to fetch."""
        while True:
            self._something.clear()
            self._end_waits()
            if self._membership.me is None:
                await self._pause(self._config.replica_fetch_backoff_ms)
            elif len(self._followed) > len(self._waiting):
                return
            elif self._waiting:
                await self._pause((self._next_end() - self._now()) * 1000)
            else:
                await self._something.wait()

    async def _connect(self) -> PeerConnection:
        config = self._config
        text = self.leader.listeners.get(self._listener)
        if text is None:
            raise RequestFailedError(f"it has no listener {self._listener}")
        _, host, port = parse_host_port(text)
        seconds = config.replica_socket_timeout_ms / 1000
        largest = config.replica_fetch_response_max_bytes + config.socket_request_max_bytes + _HEADS_BYTES
        name = f"broker-{me.node_id}-fetcher" if (me := self._membership.me) is not None else "fetcher"
        self._link = await PeerConnection.open(
            host,
            port,
            client_id=name,
            timeout=seconds,
            largest=largest,
            proof=self._membership.proof,
            dial=self._dial,
        )
        return self._link

    async def _fetch_from(self, link: PeerConnection) -> None:
        """Fetch until there is nothing to fetch."""
        while True:
            self._end_waits()
            await self._flush()
            me = self._membership.me
            if me is None or len(self._followed) == len(self._waiting):
                return
            if self._hold_throttled() and len(self._followed) == len(self._waiting):
                self._something.clear()
                await self._pause((self._next_end() - self._now()) * 1000)
                continue
            wait_ms = self._wait_ms()
            body = self._request(me, wait_ms)
            self._requests += 1
            self._answer_due = self._now() + wait_ms / 1000
            seconds = (wait_ms + self._config.replica_socket_timeout_ms) / 1000
            try:
                answer = await link.ask(ApiKey.FETCH, replica_fetch.VERSION, body, timeout=seconds)
            finally:
                self._answer_due = 0.0
            try:
                response = self._understood(answer)
                if response is not None:
                    quiet = self._session.answered(response)
                    self._note_success()
                    await self._take_all(link, response)
                    await self._take_quiet(quiet)
            except InvalidRequestError as error:
                raise PeerConnectionLostError(f"the answer of {link.peer} is invalid: {error}") from error

    # A request

    async def _flush(self) -> None:
        """Flush what ``flush.messages`` requires before the next offsets are fetched, and wait for changes of logs."""
        for _, one in [*self._to_ask()]:
            if one.replica.is_changing:  # a fetcher before this one wanted it
                await self._changes.until_settled(one.replica)
        while due := [(key, one) for key, one in self._to_ask() if one.replica.log.needs_flush]:
            await asyncio.gather(*(self._flush_one(key, one) for key, one in due))

    def _hold_throttled(self) -> bool:
        """Leave partitions out of the next requests if they are not in sync and their throttle is used up; whether
        there are some."""
        throttle = self._throttle
        milliseconds = 0 if throttle is None else throttle.hold_ms()
        if throttle is None or not milliseconds:
            return False
        is_held = False
        for key, one in [*self._to_ask()]:
            told = self._session.told.get(key)
            in_sync = told is not None and told[0] <= one.replica.log.log_end_offset
            if not in_sync and throttle.has(one.replica.topic_partition):
                one.hold(self._now() + milliseconds / 1000)
                self._waiting[key] = one
                self._changed[key] = None
                is_held = True
        return is_held

    def _to_ask(self) -> Iterator[tuple[PartitionKey, PartitionFetchState]]:
        for key in self._followed if self._session.is_full else self._changed:
            one = self._followed.get(key)
            if one is not None and not one.waits_until:
                yield key, one

    async def _flush_one(self, key: PartitionKey, followed: PartitionFetchState) -> None:
        try:
            await self._workers.run(followed.replica.log.flush)
        except SeglogError as error:
            if self._followed.get(key) is followed:
                self._refused(key, followed, error)

    def _end_waits(self) -> None:
        """Fetch partitions again whose backoff is over."""
        if self._waiting:
            now = self._now()
            for key, followed in [*self._waiting.items()]:
                if followed.waits_until <= now:
                    del self._waiting[key]
                    followed.retry()
                    self._changed[key] = None

    def _next_end(self) -> float:
        return min(followed.waits_until for followed in self._waiting.values())

    def _wait_ms(self) -> int:
        """Return how long the leader may wait: at most until another partition is due."""
        config, now = self._config, self._now()
        wait_ms = config.replica_fetch_wait_max_ms
        if now - self._followed_at < wait_ms / 1000:
            wait_ms = min(wait_ms, _SETTLING_MS)
        if self._waiting:
            wait_ms = min(wait_ms, max(int((self._next_end() - now) * 1000), 1))
        return wait_ms

    def _request(self, me: Member, wait_ms: int) -> bytes:
        config, session = self._config, self._session
        changed, self._changed = self._changed, {}
        followed = self._followed
        wanted, forgotten = [], []
        for key in followed if session.is_full else changed:
            one = followed.get(key)
            if one is None or one.waits_until:
                forgotten.append(key)
            else:
                wanted.append((key, one.replica.ask(me, config.replica_fetch_max_bytes)))
        head = RequestHead(
            wait_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            NO_SESSION,
            0,
            me.node_id,
            me.epoch,
        )
        return session.request(head, wanted, forgotten)

    # An answer

    def _understood(self, answer: memoryview) -> FetchResponse | None:
        """Decode the answer. None if the session has to start again."""
        response = replica_fetch.read_response(answer)
        session = self._session
        if response.error in SESSION_ERRORS and not session.is_full:
            session.restart()
            return None
        if response.error:
            raise RequestFailedError(f"it answers with error {response.error}")
        return response

    async def _take_all(self, link: PeerConnection, response: FetchResponse) -> None:
        outside = []
        wanted: list[_Wanted] = []
        begun = self._now()
        for partition in response.partitions:
            key = partition[:2]
            followed = self._followed.get(key)
            if followed is None or followed.waits_until:
                self._session.doubt(key)
                continue
            self._changed[key] = None
            if self._session.asked[key].leader_epoch != followed.replica.leader_epoch:
                continue  # it answers a fetch of an earlier epoch
            if partition.error == OFFSET_OUT_OF_RANGE:
                outside.append((key, followed))
            elif partition.error:
                self._failed(key, followed, f"broker {self.leader.node_id} answers with error {partition.error}")
            else:
                _, _, _, high_watermark, log_start_offset, diverging, records = partition
                agreed = None if diverging is None else EpochEnd(*diverging)
                found = ReplicaAnswer(agreed, None, high_watermark, log_start_offset)
                if self._throttle is not None:
                    self._throttle.record(followed.replica.topic_partition, len(records))
                wanted += self._take(key, followed, found, records)
            if self._now() - begun > _TURN_SECONDS:
                await asyncio.sleep(0)
                begun = self._now()
        await self._carry_out(wanted)
        if outside:
            await self._find_the_way_back(link, outside)

    async def _take_quiet(self, keys: list[PartitionKey]) -> None:
        """Apply the last known positions of partitions without news: they may have been answers to another question."""
        wanted: list[_Wanted] = []
        for key in keys:
            followed, told = self._followed.get(key), self._session.told.get(key)
            if followed is not None and told is not None and not followed.waits_until:
                wanted += self._take(key, followed, ReplicaAnswer(None, None, *told), b"")
        await self._carry_out(wanted)

    async def _carry_out(self, wanted: list[_Wanted]) -> None:
        """Change the logs as answers require, in a thread, before the next request names their ends."""
        while wanted:
            carry_out = self._changes.carry_out
            errors = await asyncio.gather(*(carry_out(one.followed.replica, one.change) for one in wanted))
            done, wanted = wanted, []
            for one, error in zip(done, errors, strict=True):
                if self._followed.get(one.key) is not one.followed:
                    continue
                if error is not None:
                    self._refused(one.key, one.followed, error)
                elif isinstance(one.change, StartAt) and one.answer is not None:
                    wanted += self._take(one.key, one.followed, one.answer, one.records)

    def _take(
        self, key: PartitionKey, followed: PartitionFetchState, answer: ReplicaAnswer, records: Buffer
    ) -> list[_Wanted]:
        """Apply an answer; return the change of the log that it requires, if any."""
        replica, asked = followed.replica, self._session.asked[key]
        change = None
        try:
            if followed.starts_again:
                followed.starts_again = False
                asked = asked._replace(offset=replica.log.log_end_offset)
            change = replica.take(asked, answer, records)
        except SeglogError as error:
            self._refused(key, followed, error)
        except Exception as error:  # the other partitions must still get their records
            if not followed.failures:
                _logger.exception("%s cannot be followed", replica.topic_partition)
            self._failed(key, followed, repr(error))
        else:
            if followed.failures:
                followed.succeeded()
        if change is None:
            return []
        followed.starts_again = isinstance(change, StartAt)
        return [_Wanted(key, followed, change, answer, records)]

    def _refused(self, key: PartitionKey, followed: PartitionFetchState, error: SeglogError) -> None:
        """This broker's own log refuses the answer."""
        if isinstance(error, (LogDirOfflineError, LogClosedError)):
            _logger.warning("%s is no longer followed: %s", followed.replica.topic_partition, error)
            self._drop(key)
        else:
            self._failed(key, followed, str(error))

    def _failed(self, key: PartitionKey, followed: PartitionFetchState, error: str) -> None:
        """Back off from this partition only."""
        self._session.doubt(key)
        self._changed[key] = None
        self._waiting[key] = followed
        if followed.failed(error, self._now(), self._config.replica_fetch_backoff_ms):
            name = followed.replica.topic_partition
            _logger.warning("%s cannot be followed, and is retried: %s", name, error)

    async def _find_the_way_back(
        self, link: PeerConnection, outside: list[tuple[PartitionKey, PartitionFetchState]]
    ) -> None:
        """These logs end where the leader has nothing: ask where the leader's logs begin and end."""
        asked = {key: self._session.asked[key] for key, _ in outside}
        names = {key: followed.replica.topic_partition for key, followed in outside}
        wanted = [(names[key], asked[key].leader_epoch) for key, _ in outside]
        me = self._membership.me
        if me is None:
            return
        seconds = self._config.replica_socket_timeout_ms / 1000
        found = await ask_offsets(link, me.node_id, wanted, timeout=seconds)
        moves: list[_Wanted] = []
        for key, followed in outside:
            replica, one = followed.replica, found[names[key]]
            self._session.doubt(key)
            if self._followed.get(key) is not followed or replica.leader_epoch != asked[key].leader_epoch:
                continue
            if one.error:
                self._failed(
                    key, followed, f"broker {self.leader.node_id} answers a request for offsets with error {one.error}"
                )
                continue
            end = replica.log.log_end_offset
            try:
                change = None if replica.is_changing else replica.out_of_range(one.start, one.end)
            except SeglogError as error:
                self._refused(key, followed, error)
                continue
            if change is None:
                self._failed(key, followed, f"offset {end} is outside of its log from {one.start} to {one.end}")
            else:
                moves.append(_Wanted(key, followed, change, None, b""))
        await self._carry_out(moves)
