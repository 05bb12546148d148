"""The topic ``_schemas``: all records from its beginning, and new ones with acks=all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from seglog.client.bootstrap import parse_bootstrap
from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.connection import check_answer
from seglog.core.clock import SystemClock
from seglog.core.types import Buffer
from seglog.protocol.apis import ApiKey
from seglog.records.any_magic import decode
from seglog.records.batch import entries
from seglog.records.record import NewRecord, encode_batch
from seglog.testing.registry.state import Change

TOPIC: Final = "_schemas"
_FETCH_BYTES: Final = 4 << 20


class SchemasTopic:
    """Opens connections for each use. Raises the errors of `BrokerConnection`."""

    def __init__(self, bootstrap: str) -> None:
        self._config = ClientConfig(bootstrap=tuple(parse_bootstrap(bootstrap)), client_id="schema-registry")

    def read(self) -> Iterator[Change]:
        """All records, from the first."""
        with ClusterConnections(self._config) as cluster:
            topic_id = cluster.metadata([TOPIC]).topics[TOPIC].topic_id
            offset, end = 0, None
            while end is None or offset < end:
                answer = cluster.ask_any(ApiKey.FETCH, _fetch(topic_id, offset))
                check_answer(answer.error_code, "the registry's topic")
                (partition,) = answer.responses[0].partitions
                check_answer(partition.error_code, "the registry's topic")
                end = partition.high_watermark
                data = bytes(partition.records or b"")
                before = offset
                for entry in entries(data):
                    for record in decode(data, entry):
                        if record.offset >= offset:
                            offset = record.offset + 1
                            yield _loads(record.key) or {}, _loads(record.value)
                if offset == before:  # compaction has removed the last records
                    return

    def write(self, changes: Sequence[Change]) -> None:
        """Append records together; they are durable then."""
        now_ms = SystemClock().now_ms()
        batch = encode_batch([NewRecord(_dumps(value), _dumps(key), now_ms) for key, value in changes])
        with ClusterConnections(self._config) as cluster:
            topic_id = cluster.metadata([TOPIC]).topics[TOPIC].topic_id
            one = {"name": TOPIC, "topic_id": topic_id, "partition_data": [{"index": 0, "records": bytes(batch)}]}
            contents = {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": [one]}
            answer = cluster.ask_any(ApiKey.PRODUCE, contents)
            check_answer(answer.responses[0].partition_responses[0].error_code, "the registry's topic")


def _fetch(topic_id: object, offset: int) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": _FETCH_BYTES,
    }
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": _FETCH_BYTES,
        "isolation_level": 1,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": TOPIC, "topic_id": topic_id, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _dumps(value: object) -> bytes | None:
    return None if value is None else json.dumps(value, separators=(",", ":")).encode()


def _loads(data: Buffer | None) -> dict[str, Any] | None:
    if data is None:
        return None
    found: dict[str, Any] = json.loads(bytes(data))
    return found
