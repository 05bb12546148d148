"""Topics of any Kafka: creates one by the controller, which may move or be away for a moment, and reads keys of their
configurations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.connection import check_answer, describe_code
from seglog.client.retries import Retries
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import BrokerUnavailableError
from seglog.protocol.apis import ApiKey

_TOPIC: Final = 2
"""The resource type."""
_AT_ONCE: Final = 500
_DEFAULT: Final = -1
"""As many partitions and replicas as the brokers' configuration says (KIP-464)."""
_AGAIN: Final = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.THROTTLING_QUOTA_EXCEEDED})


def create_topic(cluster: ClusterConnections, name: str, partitions: int | None, config: Mapping[str, str]) -> None:
    """Create the topic unless it exists. The brokers choose the number of replicas, and of partitions if it is None.

    Its partitions may have no leader yet. `RequestFailedError` names the topic, or says why no controller answers
    within ``delivery.timeout.ms``.
    """
    topic = {
        "name": name,
        "num_partitions": partitions or _DEFAULT,
        "replication_factor": _DEFAULT,
        "configs": [{"name": key, "value": value} for key, value in config.items()],
    }
    retries = Retries(cluster.config, cluster.config.delivery_timeout)
    while (problem := _ask_controller(cluster, topic)) is not None:
        retries.wait(f"topic {name} cannot be created: {problem}")


def _ask_controller(cluster: ClusterConnections, topic: Mapping[str, Any]) -> str | None:
    """None when the topic exists; why the controller does not answer."""
    try:
        metadata = cluster.metadata(())
        address = metadata.brokers.get(metadata.controller)
        if address is None:
            return "the cluster has no controller now"
        contents = {"topics": [topic], "timeout": round(cluster.config.timeout * 1000)}
        (answer,) = cluster.ask_at(address, ApiKey.CREATE_TOPICS, contents).topics
    except BrokerUnavailableError as error:
        return str(error)
    if answer.error_code in _AGAIN:
        return f"{address}: {describe_code(answer.error_code)}"
    if answer.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
        check_answer(answer.error_code, f"topic {topic['name']}", answer.error_message)
    return None


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
