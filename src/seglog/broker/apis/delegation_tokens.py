"""Delegation tokens: CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken. Rules
are those of ``KafkaApis.scala`` and ``DelegationTokenControlManager.java``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from seglog.broker.offload import in_turns
from seglog.broker.requests import FAILURES, Answer, ApiError, ApiHandler, RequestContext, code_of
from seglog.broker.security.delegation_tokens import DelegationTokens, Token
from seglog.broker.security.verification import TokenPrincipal
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.net.connection import ANONYMOUS
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_USER: Final = "User"
_MOST_RENEWERS: Final = 1000


class DelegationTokenApis:
    """``tokens`` is None without ``delegation.token.secret.key``; ``protocol`` returns the protocol of a listener."""

    def __init__(self, tokens: DelegationTokens | None, protocol: Callable[[str], str]) -> None:
        self._tokens = tokens
        self._protocol = protocol

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.CREATE_DELEGATION_TOKEN: self.create,
            ApiKey.RENEW_DELEGATION_TOKEN: self.renew,
            ApiKey.EXPIRE_DELEGATION_TOKEN: self.expire,
            ApiKey.DESCRIBE_DELEGATION_TOKEN: self.describe,
        }

    def _allowed(self, context: RequestContext) -> DelegationTokens:
        """`ApiError` if the client may not ask for tokens. A client with a token could prolong its own access."""
        protocol, principal = self._protocol(context.listener), context.principal
        is_unknown = protocol == "SSL" and principal == ANONYMOUS
        if protocol == "PLAINTEXT" or is_unknown or isinstance(principal, TokenPrincipal):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
        if self._tokens is None:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return self._tokens

    async def create(self, request: Message, context: RequestContext) -> Answer:
        requester = owner = str(context.principal)
        if getattr(request, "owner_principal_name", None):
            owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
        parties = {**_principal("", owner), **_principal("token_requester_", requester)}
        try:
            tokens = self._allowed(context)
            renewers = [f"{one.principal_type}:{one.principal_name}" for one in request.renewers[: _MOST_RENEWERS + 1]]
            if not all(one.startswith(f"{_USER}:") for one in (owner, *renewers)):
                raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE)
            if len(renewers) > _MOST_RENEWERS:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            token = await tokens.create(owner, requester, dict.fromkeys(renewers), request.max_lifetime)
        except FAILURES as error:
            times = dict.fromkeys(("issue_timestamp", "expiry_timestamp", "max_timestamp"), _time_of(error))
            return {"error_code": int(code_of(error)), **parties, **times, "token_id": "", "hmac": b""}
        return {
            "error_code": 0,
            **parties,
            "issue_timestamp": token.issued,
            "expiry_timestamp": token.expires,
            "max_timestamp": token.ends,
            "token_id": token.token_id,
            "hmac": tokens.hmac_of(token.token_id),
        }

    async def renew(self, request: Message, context: RequestContext) -> Answer:
        try:
            tokens = self._allowed(context)
            expires = await tokens.renew(bytes(request.hmac), str(context.principal), request.renew_period)
        except FAILURES as error:
            return {"error_code": int(code_of(error)), "expiry_timestamp": _time_of(error)}
        return {"error_code": 0, "expiry_timestamp": expires}

    async def expire(self, request: Message, context: RequestContext) -> Answer:
        try:
            tokens = self._allowed(context)
            expires = await tokens.expire(bytes(request.hmac), str(context.principal), request.expiry_time_period)
        except FAILURES as error:
            return {"error_code": int(code_of(error)), "expiry_timestamp": _time_of(error)}
        return {"error_code": 0, "expiry_timestamp": expires}

    async def describe(self, request: Message, context: RequestContext) -> Answer:
        """Without an authorizer, everybody may see all tokens, as in Kafka."""
        try:
            tokens = self._allowed(context)
        except ApiError as error:
            return {"error_code": int(error.code), "tokens": []}
        owners = None
        if request.owners is not None:
            owners = {f"{one.principal_type}:{one.principal_name}" for one in request.owners}
        found = [
            _described(token, tokens.hmac_of(token.token_id))
            async for token in in_turns(tokens.all())
            if owners is None or token.concerns(owners)
        ]
        return {"error_code": 0, "tokens": found}


_OF_THE_BROKER: Final = (ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, ErrorCode.INVALID_PRINCIPAL_TYPE)
"""Errors with which Kafka's broker refuses a request that it would pass on to the controller."""


def _time_of(error: SeglogError | OSError) -> int:
    """In the place of a time."""
    return -1 if code_of(error) in _OF_THE_BROKER else 0


def _principal(prefix: str, principal: str) -> dict[str, Any]:
    kind, _, name = principal.partition(":")
    return {f"{prefix}principal_type": kind, f"{prefix}principal_name": name}


def _described(token: Token, secret: bytes) -> dict[str, Any]:
    return {
        **_principal("", token.owner),
        **_principal("token_requester_", token.requester),
        "issue_timestamp": token.issued,
        "expiry_timestamp": token.expires,
        "max_timestamp": token.ends,
        "token_id": token.token_id,
        "hmac": secret,
        "renewers": [_principal("", one) for one in token.renewers],
    }
