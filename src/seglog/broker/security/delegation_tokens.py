"""Delegation tokens (KIP-48, KIP-373): short-lived secrets with which a program acts for the user who created them.

The metadata store has each token as JSON at ``config/tokens/<token id>``, with owner, requester, renewers and times,
but not its secret, the HMAC of its id by ``delegation.token.secret.key``: each broker computes it, so that a copy of
the store lets nobody in. A client logs in by SCRAM with the id as its user and the HMAC as its password.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from seglog.broker.requests import ApiError
from seglog.broker.security.scram import SCRAM_DIGESTS, ScramCredential, TokenCredential
from seglog.broker.store_writes import delete, read, write
from seglog.client.security.scram import LEAST_ITERATIONS, salted_password
from seglog.cluster.cluster_view import ClusterView, NamedValue
from seglog.cluster.store import MISSING, MetadataStore, NameExistsError, NoSuchNameError, VersionChangedError
from seglog.core.error_codes import ErrorCode

if TYPE_CHECKING:
    from seglog.cluster.cluster_view import Changes

_log: Final = logging.getLogger("seglog.security")
FOLDER: Final = "config/tokens"
_USER: Final = "User:"
_ID_BYTES: Final = 16
_DIGEST: Final = "sha512"
_MOST: Final = 100_000
"""Tokens of a cluster: each user may create some, and all brokers know all of them."""
_MOST_BYTES: Final = 64 << 10
"""Of a token in the store, which its renewers fill."""

_LATEST: Final = 253_402_300_799_999
"""The end of the year 9999."""


class Token(NamedTuple):
    """``owner``, ``requester`` and ``renewers`` are principals such as ``User:alice``; times are in ms."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued: int
    expires: int
    ends: int
    """``expires`` may be renewed up to here."""

    def concerns(self, principals: Collection[str]) -> bool:
        """Whether one of these owns it, asked for it, or may renew it."""
        return any(one in principals for one in (self.owner, self.requester, *self.renewers))

    def encode(self) -> bytes:
        return json.dumps(self._asdict(), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """ValueError if it is none."""
        try:
            told = json.loads(data)
            texts = [str(told[name]) for name in ("token_id", "owner", "requester")]
            times = [int(told[name]) for name in ("issued", "expires", "ends")]
            return cls(texts[0], texts[1], texts[2], tuple(map(str, told["renewers"])), *times)
        except (KeyError, TypeError) as error:
            raise ValueError(f"it is no delegation token: {error!r}") from None


class Lifetimes(NamedTuple):
    """In ms: how long a token lasts, and how long after its creation or renewal it expires."""

    longest: int
    renewal: int


class DelegationTokens:
    """Read from the broker's view, written to the store."""

    def __init__(
        self,
        store: MetadataStore,
        view: ClusterView,
        secret: str,
        lifetimes: Lifetimes,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._view = view
        self._secret = secret.encode()
        self._lifetimes = lifetimes
        self._now_ms = now_ms
        self._tokens: dict[str, Token] = {}
        self._ids: dict[bytes, str] = {}
        """By HMAC."""
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        """Of tokens that have logged in, by id and mechanism: they cost milliseconds."""
        self._take_up(view.configs)
        view.listeners.append(self._changed)

    def _changed(self, changes: Changes) -> None:
        self._take_up(changes.configs)

    def _take_up(self, names: Collection[str]) -> None:
        for name in names:
            if name.startswith(f"{FOLDER}/"):
                self._take_up_one(name.removeprefix(f"{FOLDER}/"), self._view.configs.get(name))

    def _take_up_one(self, token_id: str, value: bytes | None) -> None:
        token = None
        if value is not None:
            try:
                token = Token.decode(value)
            except ValueError as error:
                _log.error("the delegation token %s in the metadata store cannot be read: %s", token_id, error)
        if token is not None and token.token_id == token_id:
            self._tokens[token_id] = token
            self._ids[self.hmac_of(token_id)] = token_id
        elif self._tokens.pop(token_id, None) is not None:
            del self._ids[self.hmac_of(token_id)]
            for mechanism in SCRAM_DIGESTS:
                self._credentials.pop((token_id, mechanism), None)

    def hmac_of(self, token_id: str) -> bytes:
        return hmac.digest(self._secret, token_id.encode(), _DIGEST)

    def all(self) -> Iterator[Token]:
        """Also those that have expired and are not removed yet."""
        yield from list(self._tokens.values())

    def credential(self, mechanism: str, token_id: str, salt: bytes) -> TokenCredential | None:
        """By which a client logs in with a token; None if there is none, or it has expired."""
        token = self._tokens.get(token_id)
        if token is None or token.expires <= self._now_ms():
            return None
        digest = SCRAM_DIGESTS[mechanism]
        made = self._credentials.get((token_id, mechanism))
        if made is None or made.salt != salt:
            password = base64.b64encode(self.hmac_of(token_id)).decode()
            salted = salted_password(digest, password, salt, LEAST_ITERATIONS)
            made = ScramCredential.of_salted(digest, salt, salted, LEAST_ITERATIONS)
            self._credentials[token_id, mechanism] = made
        return TokenCredential(made, token.owner.removeprefix(_USER), token.expires)

    async def create(self, owner: str, requester: str, renewers: Collection[str], longest: int) -> Token:
        """``longest``: its lifetime in ms, if it is positive. `ApiError` if there are too many, or the store fails."""
        if len(self._tokens) >= _MOST:
            raise ApiError(ErrorCode.POLICY_VIOLATION, f"there are {_MOST} delegation tokens")
        now = self._now_ms()
        lasts = min(longest, self._lifetimes.longest) if longest > 0 else self._lifetimes.longest
        ends = min(now + lasts, _LATEST)
        token = Token(_new_id(), owner, requester, tuple(renewers), now, min(ends, now + self._lifetimes.renewal), ends)
        if len(token.encode()) > _MOST_BYTES:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a delegation token has too many renewers")
        name, value = _name(token), token.encode()
        self._view.note(name, value, await write(self._store, name, value, MISSING))
        return token

    async def renew(self, secret: bytes, principal: str, period: int) -> int:
        """When the token expires now. `ApiError`, as of all changes, if it is not there, not the principal's, or has
        expired."""

        def change(token: Token, now: int) -> Token:
            self._check_time(token, now)
            _check_right(token, principal)
            renewal = min(period, self._lifetimes.renewal) if period > 0 else self._lifetimes.renewal
            return token._replace(expires=min(token.ends, now + renewal))

        return (await self._change(secret, change)).expires

    async def expire(self, secret: bytes, principal: str, period: int) -> int:
        """Let a token expire after ``period`` ms; remove it if that is negative. Returns when it expires."""
        now = self._now_ms()

        def change(token: Token, now: int) -> Token | None:
            _check_right(token, principal)
            if period < 0:
                return None
            self._check_time(token, now)
            return token._replace(expires=min(token.ends, now + period))

        found = await self._change_or_remove(secret, change)
        return now if found is None else found.expires

    def _check_time(self, token: Token, now: int) -> None:
        if min(token.expires, token.ends) < now:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)

    async def _change(self, secret: bytes, change: Callable[[Token, int], Token]) -> Token:
        found = await self._change_or_remove(secret, change)
        assert found is not None
        return found

    async def _change_or_remove(self, secret: bytes, change: Callable[[Token, int], Token | None]) -> Token | None:
        token_id = self._ids.get(secret)
        if token_id is None:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        name = f"{FOLDER}/{token_id}"
        while True:
            found = await read(self._store.get(name))
            try:
                token = None if found is None else Token.decode(found.value)
            except ValueError:
                token = None
            if found is None or token is None:
                raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
            changed = change(token, self._now_ms())
            try:
                if changed is None:
                    await delete(self._store, name, found.version)
                    self._view.note_all([NamedValue(name, None)])
                elif changed.encode() != found.value:
                    version = await write(self._store, name, changed.encode(), found.version)
                    self._view.note(name, changed.encode(), version)
                return changed
            except (NameExistsError, NoSuchNameError, VersionChangedError):
                continue  # another broker changed it: read again

    async def run(self, seconds: float, is_controller: Callable[[], bool]) -> None:
        """Remove the tokens that have expired, again and again, while this broker is the controller."""
        while True:
            await asyncio.sleep(seconds)
            if is_controller():
                await self.remove_expired()

    async def remove_expired(self) -> None:
        now = self._now_ms()
        for token in self.all():
            if min(token.expires, token.ends) >= now:
                continue
            name = _name(token)
            try:
                await delete(self._store, name, self._view.versions.get(name, MISSING))
                self._view.note_all([NamedValue(name, None)])
            except (ApiError, NameExistsError, NoSuchNameError, VersionChangedError) as error:
                _log.info("the delegation token %s is removed later: %s", token.token_id, error)


def _check_right(token: Token, principal: str) -> None:
    """Who asked for a token for another may not renew it, as in Kafka."""
    if principal not in (token.owner, *token.renewers):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _name(token: Token) -> str:
    return f"{FOLDER}/{token.token_id}"


def _new_id() -> str:
    """As Kafka writes ids (``Uuid.java``)."""
    while True:
        found = base64.urlsafe_b64encode(secrets.token_bytes(_ID_BYTES)).decode().rstrip("=")
        if not found.startswith("-"):  # it would be an option on a command line
            return found
