"""The records of an internal topic, as a consumer reads them from either broker."""

from __future__ import annotations

from collections.abc import Iterator

from seglog.protocol.apis import ApiKey
from seglog.records.batch import entries, read_header
from seglog.records.record import Record, decode_records
from tests.sequences.both import Side


def records_of(side: Side, topic: str) -> Iterator[Record]:
    """All records of all partitions that are still to be read."""
    metadata = side.wire().ask(ApiKey.METADATA, 5, topics=[{"name": topic}], allow_auto_topic_creation=False)
    for partition in range(len(metadata.topics[0].partitions)):
        offset = 0
        while True:
            asked = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
            answer = side.wire().ask(
                ApiKey.FETCH,
                7,
                replica_id=-1,
                max_wait=0,
                min_bytes=0,
                max_bytes=1 << 20,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                topics=[{"topic": topic, "partitions": asked}],
            )
            data = answer.responses[0].partitions[0].records
            if not data:
                break
            for entry in entries(memoryview(data)):
                header = read_header(data, entry.position)
                offset = header.last_offset + 1
                if not header.is_control:  # markers of transactions, which consumers skip
                    yield from decode_records(data, header, entry.position)
