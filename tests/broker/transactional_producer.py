"""Transactional producers that speak the protocol by hand, and questions about the records that they have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import Wire

FENCED: Final = 90
INVALID_EPOCH: Final = 47
CONCURRENT: Final = 51
COORDINATOR_FENCED: Final = 52
NO_ID: Final = 105
UNKNOWN_TOPIC: Final = 3
UNSTABLE: Final = 88
NOT_ATTEMPTED: Final = 55
INVALID_STATE: Final = 48
ABORTABLE: Final = 120
NOT_ENOUGH_REPLICAS: Final = 19
OUT_OF_ORDER: Final = 45
NO_SUCH_PRODUCER: Final = 49


class TransactionalProducer:
    """Speaks the protocol of a transaction version by hand; ``epoch`` follows what the coordinator says."""

    def __init__(self, wire: Wire, transactional_id: str, version: int = 2, timeout: int = 60_000) -> None:
        self.wire = wire
        self.id = transactional_id
        self.version = version
        wire.ask(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=[transactional_id])
        self.sequences: dict[tuple[str, int], int] = {}
        answer = self.until_free(
            lambda: wire.ask(
                ApiKey.INIT_PRODUCER_ID,
                transactional_id=transactional_id,
                transaction_timeout=timeout,
                producer_id=-1,
                producer_epoch=-1,
            )
        )
        assert answer.error_code == 0
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    @property
    def named(self) -> dict[str, Any]:
        return {"transactional_id": self.id, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def until_free(self, ask: Callable[[], Any]) -> Any:
        """Again as long as the last transaction is being completed, as clients do."""
        while (answer := ask()).error_code in (CONCURRENT, 14, 15, 16):
            pass
        return answer

    def add(self, topic: str, *partitions: int) -> int:
        """AddPartitionsToTxn of version 3, which clients of transaction version 0 send."""
        while True:
            answer = self.wire.ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                3,
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[{"name": topic, "partitions": list(partitions)}],
            )
            codes = {one.partition_error_code for one in answer.results_by_topic_v3_and_below[0].results_by_partition}
            if codes != {CONCURRENT}:
                return int(max(codes))

    def send(self, topic: str, value: bytes, partition: int = 0) -> int:
        """One batch, after adding its partition in version 0; the partition's error."""
        if self.version < 2:
            assert self.add(topic, partition) == 0
        return self.produce(topic, value, partition)

    def produce(
        self, topic: str, value: bytes, partition: int = 0, *, produce_version: int | None = None, **changes: int
    ) -> int:
        sequence = self.sequences.get((topic, partition), 0)
        fields = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "base_sequence": sequence, **changes}
        batch = encode_batch([NewRecord(value)], transactional=True, **fields)
        answer = self.wire.ask(
            ApiKey.PRODUCE,
            produce_version or (12 if self.version >= 2 else 11),
            transactional_id=self.id,
            acks=-1,
            timeout=30_000,
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": bytes(batch)}]}],
        )
        code = int(answer.responses[0].partition_responses[0].error_code)
        if code == 0:
            self.sequences[topic, partition] = sequence + 1
        return code

    def end(self, *, commit: bool = True, version: int | None = None) -> Any:
        """Follows the coordinator to the next epoch, where it gives one."""
        wanted = version if version is not None else 5 if self.version >= 2 else 4
        answer = self.until_free(lambda: self.wire.ask(ApiKey.END_TXN, wanted, **self.named, committed=commit))
        if answer.error_code == 0 and wanted >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer


def fetch(wire: Wire, topic: str, *, committed: bool = True, partition: int = 0) -> Any:
    asked = [{"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    answer = wire.ask(
        ApiKey.FETCH,
        12,
        max_wait=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=int(committed),
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": asked}],
    )
    return answer.responses[0].partitions[0]


def stable_end(wire: Wire, topic: str, partition: int = 0) -> int:
    return int(fetch(wire, topic, partition=partition).last_stable_offset)
