"""A transactional producer by hand: of transaction version 1, which adds partitions itself, or 2 (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.records.record import NewRecord, encode_batch
from tests.cluster_run.history import FAIL, INFO, OK, Outcome, Read, Send
from tests.simulation.cluster.contents import TOPIC
from tests.simulation.wire import LostError

if TYPE_CHECKING:
    from tests.simulation.transactions.clients import TransactionClient

_EPOCH_MS: Final = 1_700_000_000_000
_CONCURRENT: Final = 51
_LOADING: Final = 14
_RETRIED: Final = {3, 7, _LOADING, 15, 16, 19, _CONCURRENT}
"""UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, three codes of coordinators, NOT_ENOUGH_REPLICAS,
CONCURRENT_TRANSACTIONS."""
_PASSING: Final = {3, 5, 6, 7, 19, 20, 45, _CONCURRENT, 56, 74, 75, 76, 100}
_OVER: Final = {47, 48, 49, 90, 120}
"""The transaction, or the producer, is not the current one any more: INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, TRANSACTION_ABORTABLE."""
_TO_REJOIN: Final = {22, 25, 27}
_TRIES: Final = (1, 3, 10)
Asking = Callable[[], Awaitable[int]]


class AbortError(Exception):
    """The transaction can only be aborted."""


class OverError(AbortError):
    """It has been, or the producer is fenced."""


class RejoinError(AbortError):
    """The group wants this member to join again."""


def key_of(number: int) -> str:
    return f"{TOPIC}-{number}"


class TransactionalProducer:
    """``needs_init``: it may not begin another transaction in its epoch. A request without an answer may still arrive;
    version 1 takes another epoch then, for the next transaction would be in the same one (KIP-360)."""

    def __init__(self, client: TransactionClient, transactional_id: str, version: int, timeout_ms: int) -> None:
        self.client = client
        self.id = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.needs_init = True
        self.sends: dict[str, Send] = {}
        """Of the transaction, by value."""
        self.reads: list[Read] = []
        self.has_begun = False
        self._producer_id = self._epoch = -1
        self._sequences: dict[int, int] = {}
        self._added: set[int] = set()
        self._has_offsets = False

    def begin(self) -> None:
        self.sends, self.reads = {}, []
        self._added.clear()
        self.has_begun = self._has_offsets = False

    @property
    def _who(self) -> dict[str, Any]:
        return {"transactional_id": self.id, "producer_id": self._producer_id, "producer_epoch": self._epoch}

    async def _ask(self, key: ApiKey, /, version: int | None = None, **contents: Any) -> Message:
        """The coordinator. Raises `LostError`."""
        return await self.client.ask_coordinator(1, self.id, key, version=version, **contents)

    # Its requests

    async def initialize(self) -> None:
        """Until it has an epoch; who had this id before is fenced."""
        is_known = self._producer_id >= 0 and self.client.rng.random() < 0.3
        while True:
            known = (self._producer_id, self._epoch) if is_known else (-1, -1)
            try:
                answer = await self._ask(
                    ApiKey.INIT_PRODUCER_ID,
                    version=5 if self.version == 2 else 4,
                    transactional_id=self.id,
                    transaction_timeout=self.timeout_ms,
                    producer_id=known[0],
                    producer_epoch=known[1],
                )
            except LostError:
                await self.client.pause()
                continue
            code = answer.error_code
            if code == 0:
                break
            assert code in _RETRIED or (is_known and code in _OVER), f"InitProducerId of {self.id} is told {code}"
            is_known = is_known and code in _RETRIED
            await self.client.pause()
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        self.needs_init = False

    async def add(self, numbers: list[int]) -> None:
        """AddPartitionsToTxn, before version 2. Raises `AbortError`."""
        new = [number for number in numbers if number not in self._added]
        if self.version == 2 or not new:
            return

        async def ask() -> int:
            answer = await self._ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version=3,
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=self._producer_id,
                v3_and_below_producer_epoch=self._epoch,
                v3_and_below_topics=[{"name": TOPIC, "partitions": new}],
            )
            codes = [one.partition_error_code for one in answer.results_by_topic_v3_and_below[0].results_by_partition]
            return int(max(codes))

        self.has_begun = True
        await self._until_done("AddPartitionsToTxn", ask)
        self._added.update(new)

    async def send(self, number: int, count: int) -> None:
        """One batch. Raises `AbortError`."""
        client, key = self.client, key_of(number)
        history = client.cluster.history
        values = [history.attempts + 1 + index for index in range(count)]
        history.attempts += count
        self.sends.update((str(value), Send(key, str(value))) for value in values)
        sends = self.sends
        epoch, sequence = self._epoch, self._sequences.get(number, 0)
        time = _EPOCH_MS + client.cluster.now_ms
        batch = encode_batch(
            [NewRecord(b"%d" % value, timestamp=time) for value in values],
            producer_id=self._producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        self.has_begun = True
        for _ in range(client.rng.choice(_TRIES)):
            try:
                answer = await client.produce_in_transaction(number, bytes(batch), self.id, self.version)
            except LostError:
                self.needs_init = self.needs_init or self.version == 1
                await client.pause()
                continue
            if answer.error_code == 0:
                for index, value in enumerate(values):
                    history.acknowledge(number, answer.base_offset + index, value)
                    sends[str(value)] = Send(key, str(value), answer.base_offset + index)
                if epoch == self._epoch:
                    self._sequences[number] = sequence + count
                return
            if answer.error_code in _OVER:
                raise OverError(str(answer.error_code))
            assert answer.error_code in _PASSING, f"a producer is told {answer.error_code}: {answer.error_message}"
            await client.pause()
        self.needs_init = self.needs_init or self.version == 1
        raise AbortError

    async def send_all(self, numbers: list[int]) -> None:
        """One batch for each partition, all at once. Raises `AbortError`."""
        await self.add(numbers)
        found = await asyncio.gather(
            *(self.send(number, self.client.rng.choice((1, 1, 2))) for number in numbers), return_exceptions=True
        )
        errors = [one for one in found if one is not None]
        if errors:
            raise next((one for one in errors if not isinstance(one, AbortError)), errors[0])

    async def commit_offset(self, group: str, number: int, offset: int, member_id: str, generation: int) -> None:
        """TxnOffsetCommit (KIP-447). Raises `AbortError`."""

        async def add() -> int:
            return int((await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, version=3, **self._who, group_id=group)).error_code)

        async def commit() -> int:
            partition = {"partition_index": number, "committed_offset": offset, "committed_metadata": ""}
            answer = await self.client.ask_coordinator(
                0,
                group,
                ApiKey.TXN_OFFSET_COMMIT,
                version=5 if self.version == 2 else 4,
                **self._who,
                group_id=group,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=None,
                topics=[{"name": TOPIC, "partitions": [partition]}],
            )
            return int(answer.topics[0].partitions[0].error_code)

        self.has_begun = True
        if self.version == 1 and not self._has_offsets:
            await self._until_done("AddOffsetsToTxn", add)
            self._has_offsets = True
        await self._until_done("TxnOffsetCommit", commit)

    async def _until_done(self, what: str, ask: Asking) -> None:
        """Raises `AbortError`."""
        for _ in range(self.client.rng.choice(_TRIES)):
            try:
                code = await ask()
            except LostError:
                self.needs_init = self.needs_init or self.version == 1
                await self.client.pause()
                continue
            if code == 0:
                return
            if code in _OVER:
                raise OverError(str(code))
            if code in _TO_REJOIN:
                raise RejoinError
            assert code in _RETRIED, f"{what} of {self.id} is told {code}"
            await self.client.pause()
        raise AbortError

    async def end(self, *, commit: bool) -> Outcome:
        """EndTxn, until it is answered or, in version 1, its answer is lost."""
        if not self.has_begun:
            return FAIL
        if self.version == 2 and self.client.rng.random() < self.client.cluster.faults.end_again:
            self.client.loop.create_task(self._end_late(self._who, commit=commit))
        unknown: Outcome = INFO if commit else FAIL
        failed: Outcome = FAIL
        while True:
            try:
                answer = await self._ask(
                    ApiKey.END_TXN, version=5 if self.version == 2 else 4, **self._who, committed=commit
                )
            except LostError:
                failed = unknown
                if self.version == 1:
                    self.needs_init = True
                    return unknown
                await self.client.pause()
                continue
            code = answer.error_code
            if code == 0:
                if self.version == 2:
                    self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                    self._sequences.clear()
                return OK if commit else FAIL
            if code in _OVER:
                self.needs_init = True
                return failed
            assert code in _RETRIED, f"EndTxn of {self.id} is told {code}"
            if code not in (_CONCURRENT, _LOADING):
                failed = unknown
            await self.client.pause()

    async def _end_late(self, who: dict[str, Any], *, commit: bool) -> None:
        """The same EndTxn once more: a network may keep the first one back until its retry is answered. Only in version
        2 the coordinator can tell it from one of the next transaction (KAFKA-17754)."""
        await asyncio.sleep(self.client.rng.choice((0.05, 0.2, 1.0)))
        with suppress(LostError):
            await self._ask(ApiKey.END_TXN, version=5, **who, committed=commit)
