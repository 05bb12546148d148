"""Credentials of SCRAM: DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554). Rules and messages are
those of ``ScramControlManager`` and ``ScramImage``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from seglog.broker.offload import in_turns
from seglog.broker.requests import FAILURES, Answer, ApiError, ApiHandler, RequestContext, failure
from seglog.broker.security.scram import MOST_ITERATIONS, SCRAM_DIGESTS, ScramCredential
from seglog.broker.security.users import UserCredentials
from seglog.client.security.scram import LEAST_ITERATIONS
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_NAMES: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""``ScramMechanism``."""
_NUMBERS: Final = {name: number for number, name in _NAMES.items()}


class ScramCredentialApis:
    def __init__(self, users: UserCredentials) -> None:
        self._users = users

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter,
        }

    async def describe(self, request: Message, _: RequestContext) -> Answer:
        times = Counter([one.name async for one in in_turns(request.users or ())])
        if not times:
            times.update(dict.fromkeys(self._users.names(), 1))
        return {"results": [self._described(user, count) async for user, count in in_turns(times.items())]}

    def _described(self, user: str, times: int = 1) -> dict[str, Any]:
        if times > 1:
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            return {"user": user, **failure(ApiError(ErrorCode.DUPLICATE_RESOURCE, message))}
        found = self._users.of(user)
        if not found:
            message = f"Attempt to describe a user credential that does not exist: {user}"
            return {"user": user, **failure(ApiError(ErrorCode.RESOURCE_NOT_FOUND, message))}
        return {
            "user": user,
            "credential_infos": [
                {"mechanism": _NUMBERS[mechanism], "iterations": one.iterations}
                for mechanism, one in sorted(found.items())
                if mechanism in _NUMBERS
            ],
        }

    async def alter(self, request: Message, _: RequestContext) -> Answer:
        wanted: dict[str, dict[str, ScramCredential | None]] = {}
        errors: dict[str, ApiError] = {}
        async for one in in_turns((*request.deletions, *request.upsertions)):
            changes = wanted.setdefault(one.name, {})
            try:
                mechanism, credential = _change(one)
                if mechanism in changes:
                    message = "A user credential cannot be altered twice in the same request"
                    raise ApiError(ErrorCode.DUPLICATE_RESOURCE, message)
                changes[mechanism] = credential
            except ApiError as error:
                errors.setdefault(one.name, error)
        results = []
        async for user, changes in in_turns(wanted.items()):
            result: dict[str, Any] = {"user": user}
            try:
                if user in errors:
                    raise errors[user]
                await self._users.change(user, changes)
            except FAILURES as error:
                result.update(failure(error))
            results.append(result)
        return {"results": results}


def _change(asked: Message) -> tuple[str, ScramCredential | None]:
    """The mechanism of a deletion or upsertion, and the new credential."""
    if not asked.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = _NAMES.get(asked.mechanism)
    if mechanism is None:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if not hasattr(asked, "salted_password"):
        return mechanism, None
    if asked.iterations < LEAST_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if asked.iterations > MOST_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    digest = SCRAM_DIGESTS[mechanism]
    salt, salted = bytes(asked.salt), bytes(asked.salted_password)
    return mechanism, ScramCredential.of_salted(digest, salt, salted, asked.iterations)
