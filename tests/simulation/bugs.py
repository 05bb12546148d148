"""Bugs of a lone broker, put in on purpose."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import NamedTuple

import pytest

from seglog.broker.fetch.fetch import Fetch
from seglog.broker.security import guard, sasl_session
from seglog.broker.security.acl_store import StoredAcls
from seglog.broker.security.acls import Entry, Pattern
from seglog.broker.security.authorizer import Authorizer, Verdict
from seglog.broker.security.permissions import Need
from seglog.broker.security.sasl_session import SaslSession, State
from seglog.broker.security.scram import ScramCredential
from seglog.broker.security.users import UserCredentials
from seglog.broker.security.verification import Verified
from seglog.cluster.cluster_view import Changes, ClusterView
from seglog.cluster.store import MetadataStore
from seglog.core.errors import InvalidRequestError, SeglogError
from seglog.net.connection import ANONYMOUS, ClientConnection, Reply
from seglog.protocol.apis import ApiKey
from seglog.storage.log.producers import Producers

Patch = pytest.MonkeyPatch


class Bug(NamedTuple):
    """``read_errors``: the share of seeds in which reads of logs fail. ``principals``: that in which clients log in.
    ``seed`` is one that finds it soon."""

    name: str
    plant: Callable[[Patch], None]
    read_errors: float = 0.0
    principals: float = 0.0
    seed: int = 0


def _answer_left_out(patch: Patch) -> None:
    """After an answer that waits and fails, the connection goes on with the next request."""

    async def carry_on_after(self: ClientConnection, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except InvalidRequestError as error:
            self._task = None
            self._fail(error)
            return
        except (SeglogError, OSError):
            pass
        self._task = None
        if self._is_open and not self._is_finishing:
            self._handle_frames()
            self._resume()

    patch.setattr(ClientConnection, "_carry_on_after", carry_on_after)


def _last_batch_only(patch: Patch) -> None:
    """After a start from a snapshot, a producer's last batch is the only one that is recognised."""
    patch.setattr(Producers, "may_have_forgotten", lambda *_: False)


def allowance_is_kept(patch: Patch) -> None:
    """What was allowed once is remembered after the ACL is gone."""

    def put(self: Authorizer, pattern: Pattern, acls: Collection[Entry]) -> None:
        allowed = {key: verdict for key, verdict in self._known.items() if verdict.is_allowed}
        honest(self, pattern, acls)
        self._known.update(allowed)

    honest = Authorizer.put
    patch.setattr(Authorizer, "put", put)


def no_acls_at_first(patch: Patch) -> None:
    """A broker that starts knows no ACL before one changes, and allows what no ACL is about."""

    def begin(self: StoredAcls, store: MetadataStore, view: ClusterView, authorizer: Authorizer) -> None:
        authorizer._default = Verdict("DefaultAllow", is_allowed=True)
        with pytest.MonkeyPatch.context() as later:
            later.setattr(StoredAcls, "_take_over", lambda *_: None)
            honest(self, store, view, authorizer)

    def changed(self: StoredAcls, changes: Changes) -> None:
        if any(name.startswith("config/acls/") for name in changes.configs):
            self._authorizer._default = Verdict("DefaultDeny", is_allowed=False)
            self._take_over(self._view.configs)

    honest = StoredAcls.__init__
    patch.setattr(StoredAcls, "__init__", begin)
    patch.setattr(StoredAcls, "_changed", changed)


def forgotten_principal(patch: Patch) -> None:
    """A client that has authenticated again is nobody."""

    def opened(self: SaslSession, connection: ClientConnection, verified: Verified) -> None:
        is_again = bool(self._principal)
        honest(self, connection, verified)
        if is_again:
            connection.principal = ANONYMOUS

    honest = SaslSession._opened
    patch.setattr(SaslSession, "_opened", opened)


def _any_follower(patch: Patch) -> None:
    """A client may say that it is a broker."""
    patch.setattr(Fetch, "_check_consumer", lambda *_: None)


def before_login(patch: Patch) -> None:
    """A request that comes in the middle of a login is answered."""

    def call(self: SaslSession, connection: ClientConnection, frame: memoryview) -> Reply | Awaitable[Reply]:
        (key,) = struct.unpack_from(">h", frame)
        is_other = key not in sasl_session._BEFORE and self.state is State.TOKENS
        return self._dispatch(connection, frame) if is_other else honest(self, connection, frame)

    def largest_frame(self: SaslSession, head: memoryview) -> int:
        return 1 << 20 if self.state is State.TOKENS else honest_limit(self, head)

    honest, honest_limit = SaslSession.__call__, SaslSession.largest_frame
    patch.setattr(SaslSession, "__call__", call)
    patch.setattr(SaslSession, "largest_frame", largest_frame)


def _password_is_kept(patch: Patch) -> None:
    """A password that was removed or replaced still lets its user in."""
    known: dict[str, dict[str, ScramCredential]] = {}

    def of(self: UserCredentials, user: str) -> dict[str, ScramCredential]:
        return known.setdefault(user, found) if (found := honest(self, user)) else known.get(user, {})

    honest = UserCredentials.of
    patch.setattr(UserCredentials, "of", of)


def _all_topics_are_listed(patch: Patch) -> None:
    """Metadata for all topics asks for no permission."""

    def may(self: guard._Request, need: Need, name: str | None = None, *, logs: bool = True) -> bool:
        is_list = self.key is ApiKey.METADATA and self.message.topics is None
        return is_list or honest(self, need, name, logs=logs)

    honest = guard._Request.may
    patch.setattr(guard._Request, "may", may)


BUGS = (
    Bug("answer-left-out", _answer_left_out, read_errors=1.0, seed=8),
    Bug("last-batch-only", _last_batch_only, seed=62),
    Bug("allowance-is-kept", allowance_is_kept, principals=1.0),
    Bug("no-acls-at-first", no_acls_at_first, principals=1.0),
    Bug("forgotten-principal", forgotten_principal, principals=1.0, seed=6),
    Bug("any-follower", _any_follower, principals=1.0),
    Bug("before-login", before_login, principals=1.0),
    Bug("password-is-kept", _password_is_kept, principals=1.0),
    Bug("all-topics-are-listed", _all_topics_are_listed, principals=1.0),
)
