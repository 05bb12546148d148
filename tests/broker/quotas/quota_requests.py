"""Requests that set quotas, and requests of clients that have some."""

from __future__ import annotations

import select
from collections.abc import Mapping
from typing import Any

from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import RunningNode, Wire

Quotas = Mapping[str, float | None]


def set_quotas(broker: RunningNode, entity: Mapping[str, str | None], quotas: Quotas) -> None:
    """None removes one."""
    ops = [{"key": key, "value": one or 0.0, "remove": one is None} for key, one in quotas.items()]
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    with Wire(broker.bootstrap, client_id="admin") as wire:
        answer = wire.ask(ApiKey.ALTER_CLIENT_QUOTAS, entries=[{"entity": parts, "ops": ops}], validate_only=False)
    assert [(one.error_code, one.error_message) for one in answer.entries] == [(0, None)]


def quotas_of(broker: RunningNode) -> dict[frozenset[tuple[str, str | None]], dict[str, float]]:
    """All quotas, by entity."""
    with Wire(broker.bootstrap, client_id="admin") as wire:
        answer = wire.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)
    return {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries
    }


def produce_request(topic: str, size: int = 100, acks: int = 1) -> dict[str, Any]:
    records = bytes(encode_batch([NewRecord(b"v" * size)]))
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": data}


def fetch_request(topic: str, **more: Any) -> dict[str, Any]:
    """For version 11."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    return {
        "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0,
        "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
        "topics": [{"topic": topic, "partitions": [{**partition, "log_start_offset": -1}]}],
    } | more  # fmt: skip


def is_silent(wire: Wire, broker: RunningNode) -> bool:
    """Whether a request on this connection has no answer while another client has one to a later request."""
    wire.send(ApiKey.API_VERSIONS, 0)
    with Wire(broker.bootstrap, client_id="other") as other:
        for _ in range(3):
            other.ask(ApiKey.METADATA, topics=[])
    return not select.select([wire], [], [], 0)[0]
