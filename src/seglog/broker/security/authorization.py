"""Permissions of requests: the decisions of an `Authorizer`, for brokers of the cluster and for clients, and a log of
what was denied."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from seglog.broker.requests import RequestContext
from seglog.broker.security.acls import CLUSTER_NAME, Acl, Operation, ResourceType
from seglog.broker.security.authorizer import Authorizer, Client, Verdict
from seglog.broker.security.permissions import Need
from seglog.protocol.apis import name_of

audit: Final = logging.getLogger("seglog.authorizer")
"""As ``kafka.authorizer.logger`` of Kafka: denials at info."""
_new: Final = tuple.__new__
"""Makes a named tuple in half the time that its own constructor takes."""
_LINES: Final = 100
"""Lines of the log in each `_SECONDS`; the first one after them says how many were left out."""
_SECONDS: Final = 10.0


class Authorization:
    """``is_broker`` proves that a broker of the cluster sent a request: it may do everything."""

    def __init__(
        self, authorizer: Authorizer, is_broker: Callable[[RequestContext], bool], now: Callable[[], float]
    ) -> None:
        self.authorizer: Final = authorizer
        self._is_broker = is_broker
        self._now = now
        self._since = now()
        self._written = 0
        self._left_out = 0

    def may(
        self,
        context: RequestContext,
        operation: Operation,
        resource: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        logs: bool = True,
    ) -> bool:
        """Whether the sender of a request may do something. ``logs`` is False for what the client did not name."""
        client = _new(Client, (context.principal, context.client_host))
        verdict = self.authorizer.verdict(client, operation, resource, name)
        return verdict.is_allowed or self._is_exempt(context, operation, resource, name, verdict, logs=logs)

    def may_with_some(self, context: RequestContext, operation: Operation, resource: ResourceType) -> bool:
        """The same for any resource of a type."""
        verdict = self.authorizer.verdict_on_some(Client(context.principal, context.client_host), operation, resource)
        return verdict.is_allowed or self._is_exempt(context, operation, resource, "*", verdict, logs=False)

    def permits(self, context: RequestContext, need: Need, name: str = CLUSTER_NAME, *, logs: bool = True) -> bool:
        """Whether the sender of a request has a permission of the table."""
        if need.or_else and any(self._may_instead(context, *one) for one in need.or_else):
            return True
        return self.may(context, need.operation, need.resource, name, logs=logs)

    def _may_instead(self, context: RequestContext, operation: Operation, resource: ResourceType) -> bool:
        if resource is ResourceType.CLUSTER:
            return self.may(context, operation, resource, logs=False)
        return self.may_with_some(context, operation, resource)

    def sees(self, context: RequestContext) -> Callable[[str], bool]:
        """Which topics the sender may know of."""
        return lambda topic: self.may(context, Operation.DESCRIBE, ResourceType.TOPIC, topic, logs=False)

    def operations(self, context: RequestContext, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        """A field of bits of what the sender may do with a resource."""
        return self.authorizer.operations(Client(context.principal, context.client_host), resource, name)

    def _is_exempt(
        self,
        context: RequestContext,
        operation: Operation,
        resource: ResourceType,
        name: str,
        verdict: Verdict,
        *,
        logs: bool,
    ) -> bool:
        if context.proof and self._is_broker(context):
            return True
        if logs and audit.isEnabledFor(logging.INFO):
            self._log(context, operation, resource, name, verdict)
        return False

    def _log(
        self, context: RequestContext, operation: Operation, resource: ResourceType, name: str, verdict: Verdict
    ) -> None:
        now = self._now()
        if now - self._since >= _SECONDS:
            if self._left_out:
                audit.info("%d more denials were not logged in %.0f s", self._left_out, now - self._since)
            self._since, self._written, self._left_out = now, 0, 0
        if self._written >= _LINES:
            self._left_out += 1
            return
        self._written += 1
        audit.info(
            "Principal = %s is Denied operation = %s from host = %s on resource = %s:LITERAL:%r for request = %s "
            "based on rule %s",
            context.principal,
            operation.name,
            context.client_host,
            resource.name,
            name[:_LONGEST_NAME],
            name_of(context.key),
            _described(verdict.rule),
        )


_LONGEST_NAME: Final = 250


def _described(rule: Acl | str) -> str:
    if isinstance(rule, str):
        return rule
    pattern, entry = rule
    return (
        f"{entry.permission.name} {entry.operation.name} to {entry.principal} from {entry.host} on "
        f"{pattern.resource.name}:{pattern.type.name}:{pattern.name}"
    )
