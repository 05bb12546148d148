"""Users with credentials of SCRAM. The metadata store has them as JSON at ``config/users/<user>``, where the name is
percent-encoded::

    {"SCRAM-SHA-256": "salt=…,stored_key=…,server_key=…,iterations=4096"}

A user without credentials has no entry. ``config/security/scram-seed`` is the secret of `Invented`.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from seglog.broker.requests import ApiError
from seglog.broker.security.delegation_tokens import DelegationTokens
from seglog.broker.security.scram import SCRAM_DIGESTS, Invented, ScramCredential, TokenCredential
from seglog.broker.store_writes import delete, read, write
from seglog.client.security.scram import LEAST_ITERATIONS
from seglog.cluster.cluster_view import ClusterView, NamedValue
from seglog.cluster.store import (
    MISSING,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    StoreError,
    VersionChangedError,
)
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidConfigError
from seglog.core.ground import Workers
from seglog.core.settings import HIDDEN

if TYPE_CHECKING:
    from seglog.cluster.cluster_view import Changes

_log: Final = logging.getLogger("seglog.security")
FOLDER: Final = "config/users"
SEED: Final = "config/security/scram-seed"
_COMMA: Final = re.compile(r"(?<!\\),")
_SEED_BYTES: Final = 32
_MAX_NAME: Final = 255
"""The longest part of a name in the store (`seglog.cluster.store`)."""


class UserCredentials:
    """Read from the broker's view, written to the store."""

    def __init__(self, store: MetadataStore, view: ClusterView, tokens: DelegationTokens | None = None) -> None:
        """``tokens`` is None without ``delegation.token.secret.key``."""
        self.tokens = tokens
        self._store = store
        self._view = view
        self._iterations = 0
        """Those of most credentials; 0 if it must be counted again."""
        self._seed = secrets.token_bytes(_SEED_BYTES)
        """Until the store has one."""
        view.listeners.append(self._changed)

    def _changed(self, changes: Changes) -> None:
        if any(name.startswith(f"{FOLDER}/") for name in changes.configs):
            self._iterations = 0

    def names(self) -> list[str]:
        """All users, in order."""
        prefix = f"{FOLDER}/"
        return sorted(unquote(name.removeprefix(prefix)) for name in self._view.configs if name.startswith(prefix))

    def of(self, user: str) -> dict[str, ScramCredential]:
        """A user's credentials by mechanism."""
        value = self._view.configs.get(f"{FOLDER}/{encoded_name(user)}")
        return {} if value is None else decode_credentials(user, value)

    def find(self, mechanism: str, user: str) -> ScramCredential | None:
        return self.of(user).get(mechanism)

    def find_token(self, mechanism: str, token_id: str) -> TokenCredential | None:
        """The credential of a delegation token. Its salt is that of an id that does not exist."""
        if self.tokens is None:
            return None
        salt = self.invented().credential(SCRAM_DIGESTS[mechanism], token_id).salt
        return self.tokens.credential(mechanism, token_id, salt)

    def invented(self) -> Invented:
        """What a user that does not exist seems to have."""
        if not self._iterations:
            counts = Counter(one.iterations for name in self.names() for one in self.of(name).values())
            self._iterations = max(counts, key=counts.__getitem__, default=LEAST_ITERATIONS)
        return Invented(self._view.configs.get(SEED, self._seed.hex().encode()), self._iterations)

    async def make_seed(self) -> None:
        """All brokers share a seed, also after they were started again."""
        if SEED in self._view.configs:
            return
        try:
            await self._store.create(SEED, self._seed.hex().encode())
        except NameExistsError:
            pass
        except StoreError as error:  # the next start tries again
            _log.info("no secret for unknown users can be stored: %s", error)

    async def create(self, text: str, workers: Workers) -> None:
        """Create the users of ``seglog.scram.users`` that do not exist. `ApiError` if the store fails."""
        for user, password in user_passwords(text).items():
            if not self.of(user):
                await self.change(user, await workers.run(partial(credentials_of, password)))

    async def change(self, user: str, changes: Mapping[str, ScramCredential | None]) -> None:
        """Set or (None) delete credentials by mechanism. `ApiError` if one to delete does not exist, or the store
        fails."""
        name, value, version = await change_credentials(self._store, user, changes)
        if value is None:
            self._view.note_all([NamedValue(name, None)])
        else:
            self._view.note(name, value, version)


async def change_credentials(
    store: MetadataStore, user: str, changes: Mapping[str, ScramCredential | None]
) -> tuple[str, bytes | None, int]:
    """As `UserCredentials.change`; returns name, value and version in the store."""
    name = f"{FOLDER}/{encoded_name(user)}"
    if len(name) - len(FOLDER) - 1 > _MAX_NAME:
        message = f"a user's name has at most {_MAX_NAME} characters, percent-encoded"
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    while True:
        found = await read(store.get(name))
        before = {} if found is None else decode_credentials(user, found.value)
        for mechanism, credential in changes.items():
            if credential is None and mechanism not in before:
                message = "Attempt to delete a user credential that does not exist"
                raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, message)
        after = {key: one for key, one in {**before, **changes}.items() if one is not None}
        try:
            if after:
                value = encode_credentials(after)
                if found is not None and value == found.value:
                    return name, value, found.version
                return name, value, await write(store, name, value, MISSING if found is None else found.version)
            if found is not None:
                await delete(store, name, found.version)
            return name, None, 0
        except (NameExistsError, NoSuchNameError, VersionChangedError):
            continue  # another broker changed it: read again


def credentials_of(password: str) -> dict[str, ScramCredential]:
    """Of all mechanisms. Takes some milliseconds."""
    return {mechanism: ScramCredential.of_password(digest, password) for mechanism, digest in SCRAM_DIGESTS.items()}


def user_passwords(text: str) -> dict[str, str]:
    r"""
    >>> user_passwords(r"ann=x=1, bob=a\,b")
    {'ann': 'x=1', 'bob': 'a,b'}
    """
    found = {}
    for pair in _COMMA.split(text):
        name, equals, password = pair.strip().partition("=")
        if not name and not equals:
            continue
        if not name or not password:
            raise InvalidConfigError(f"seglog.scram.users={HIDDEN} is not allowed: name=password, commas between them")
        found[name] = password.replace("\\,", ",")
    return found


def encoded_name(user: str) -> str:
    """A part of a name in the store, which is neither ``.`` nor ``..``."""
    return quote(user, safe="", errors="surrogatepass").replace(".", "%2E")


def encode_credentials(credentials: Mapping[str, ScramCredential]) -> bytes:
    return json.dumps({mechanism: one.encode() for mechanism, one in credentials.items()}, sort_keys=True).encode()


def decode_credentials(user: str, value: bytes) -> dict[str, ScramCredential]:
    """A value that cannot be read lets nobody in."""
    try:
        return {str(mechanism): ScramCredential.decode(text) for mechanism, text in json.loads(value).items()}
    except (ValueError, AttributeError, TypeError) as error:
        _log.error("the credentials of user %s in the metadata store cannot be read: %s", user, error)
        return {}
