"""Configurations of topics that a driver asks brokers for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from seglog.client.client_config import ClientConfig
from seglog.client.connection import check_answer
from seglog.client.kept_connections import connections
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey

CLEANUP_POLICY: Final = "cleanup.policy"
DELETE_RETENTION: Final = "delete.retention.ms"
_TOPIC: Final = 2
"""A resource type of DescribeConfigs."""


def topic_configs(config: ClientConfig, topics: Iterable[str], keys: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """The values of ``keys`` of each topic; none of a topic whose configuration we may not see, or that was deleted
    since the caller heard of it."""
    resources = [
        {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": list(keys)} for name in sorted(topics)
    ]
    found: dict[str, Mapping[str, str]] = {name: {} for name in topics}
    if not resources:
        return found
    for result in connections(config).ask_any(ApiKey.DESCRIBE_CONFIGS, {"resources": resources}).results:
        if result.error_code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            continue
        check_answer(result.error_code, f"configuration of topic {result.resource_name}", result.error_message)
        found[result.resource_name] = {one.name: one.value or "" for one in result.configs if one.name in keys}
    return found


def may_be_compacted(config: Mapping[str, str]) -> bool:
    """True also if the policy is unknown."""
    return CLEANUP_POLICY not in config or "compact" in config[CLEANUP_POLICY]
