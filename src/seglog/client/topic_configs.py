"""Configurations of topics, as any broker describes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from seglog.client.cluster_connections import ClusterConnections
from seglog.protocol.apis import ApiKey

_TOPIC: Final = 2
"""The resource type."""
_AT_ONCE: Final = 500


def topic_config(cluster: ClusterConnections, topics: Collection[str], key: str) -> dict[str, str]:
    """The value of ``key`` of each topic. A topic that does not exist, or may not be described, is left out.

    Raises what `BrokerConnection` raises.
    """
    found = {}
    names = sorted(set(topics))
    for start in range(0, len(names), _AT_ONCE):
        resources = [
            {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": (key,)}
            for name in names[start : start + _AT_ONCE]
        ]
        for result in cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, {"resources": resources}).results:
            for one in () if result.error_code else result.configs:
                if one.name == key and one.value is not None:
                    found[result.resource_name] = one.value
    return found
