"""Who uses transactions in a simulated cluster: appenders to several partitions, which share transactional ids, and
members of a group that process records of some partitions into another one, with the group's offsets.

All put down what they were told as operations of a history, for `tests.cluster_run.transaction_checks`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.records import any_magic
from seglog.records.batch import entries
from seglog.records.record import ControlType, parse_control
from tests.cluster_run.history import FAIL, OK, History, Op, Outcome, Read
from tests.simulation.cluster.contents import TOPIC
from tests.simulation.cluster.coordinator_clients import CoordinatorClient
from tests.simulation.transactions.producer import (
    AbortError,
    OverError,
    RejoinError,
    TransactionalProducer,
    key_of,
)
from tests.simulation.wire import LostError

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster

GROUP: Final = "g"
INPUTS: Final = (0, 1)
"""The partitions that the group reads; it writes to all others."""
_IDS: Final = ("a", "b", "c", "d")
_TIMEOUTS_MS: Final = (1_500, 3_000, 6_000)
_SESSION_MS: Final = 1_500
_UNSTABLE: Final = 88
_MEMBER_ID_REQUIRED: Final = 79
_TO_REJOIN: Final = {22, 25, 27}
_PASSING: Final = {1, 3, 5, 6, 7, 14, 15, 16, 56, 74, 75, 76, 100}


class TransactionClient(CoordinatorClient):
    """One process."""

    def __init__(self, cluster: Cluster, name: str, history: History) -> None:
        super().__init__(cluster, name)
        self.operations = history
        self._is_fresh = True

    async def produce_in_transaction(
        self, number: int, data: bytes, transactional_id: str, transaction_version: int
    ) -> Message:
        """The answer for the partition. Raises `LostError`."""
        answer = await self.ask(
            self.target(number).node_id,
            ApiKey.PRODUCE,
            version=12 if transaction_version == 2 else 11,
            patience=self._patience,
            transactional_id=transactional_id,
            acks=-1,
            timeout=1_500,
            topic_data=[{"name": TOPIC, "partition_data": [{"index": number, "records": data}]}],
        )
        found: Message = answer.responses[0].partition_responses[0]
        return found

    async def read(self, number: int, start: int) -> tuple[list[Read], int]:
        """Records as a read_committed consumer gets them, and the offset at which it continues. Raises `LostError`."""
        partition = {"partition": number, "fetch_offset": start, "partition_max_bytes": self.rng.choice((200, 1_000))}
        answer = await self.ask(
            self.target(number).node_id,
            ApiKey.FETCH,
            max_wait=0,
            min_bytes=0,
            max_bytes=10_000,
            isolation_level=1,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": TOPIC, "partitions": [partition]}],
            forgotten_topics_data=[],
        )
        one = answer.responses[0].partitions[0]
        assert one.error_code == 0 or one.error_code in _PASSING, f"a consumer is told {one.error_code}"
        found, position = [], start
        for offset, value in committed_records(one, start):
            position = offset + 1
            if value is not None:
                found.append(Read(key_of(number), offset, value.decode()))
        return found, position

    # What it puts down

    def put_down(self, producer: TransactionalProducer, outcome: Outcome, began: float, group: str = "") -> None:
        self.operations.add(
            Op(
                client=self.name,
                steps=(*producer.reads, *producer.sends.values()),
                outcome=outcome,
                began=began,
                ended=self.world.now,
                is_transaction=True,
                is_fresh=self._is_fresh,
                group=group,
            )
        )
        self._is_fresh = False
        self.world.note("transaction", self.name, producer.id, outcome, len(producer.sends), len(producer.reads))

    async def finish(self, producer: TransactionalProducer, *, commit: bool) -> Outcome:
        """EndTxn; sometimes nothing, as if the process had died."""
        if self.rng.random() < 0.05:
            producer.needs_init = True
            return FAIL
        self.doing = f"commit of {producer.id}" if commit else f"abort of {producer.id}"
        return await producer.end(commit=commit)

    async def abort_behind(self, producer: TransactionalProducer, work: Coroutine[Any, Any, None]) -> Outcome:
        """Abort while something is under way."""
        late = self.loop.create_task(work)
        await asyncio.sleep(self.rng.choice((0.0, 0.002, 0.01)))
        outcome = await producer.end(commit=False)
        producer.needs_init = True
        await asyncio.gather(late, return_exceptions=True)
        return outcome


class FetchedPartition(Protocol):
    """A partition of an answer to Fetch."""

    @property
    def records(self) -> Any: ...
    @property
    def aborted_transactions(self) -> Any: ...


def committed_records(partition: FetchedPartition, start: int) -> Iterator[tuple[int, bytes | None]]:
    """The records that ``CompletedFetch`` of Kafka's consumer returns: offsets with values, None where it skips."""
    data = memoryview(partition.records or b"")
    aborted = sorted(
        ((one.first_offset, one.producer_id) for one in partition.aborted_transactions or ()), key=lambda one: one[0]
    )
    active: set[int] = set()
    for entry in entries(data):
        header = any_magic.describe(data, entry)
        while aborted and aborted[0][0] <= header.last_offset:
            active.add(aborted.pop(0)[1])
        records = any_magic.decode(data, entry)
        if header.is_control:
            if records and parse_control(records[0]).type is ControlType.ABORT:
                active.discard(header.producer_id)
            yield header.last_offset, None
        elif header.is_transactional and header.producer_id in active:
            yield header.last_offset, None
        else:
            for record in records:
                if record.offset >= start:
                    yield record.offset, bytes(record.value or b"")


class Appender(TransactionClient):
    """Writes to several partitions and reads from all, in one transaction. It takes an id that others may have, and
    sometimes waits for so long that it is fenced meanwhile: then it is a zombie."""

    def __init__(self, cluster: Cluster, name: str, history: History) -> None:
        super().__init__(cluster, name, history)
        self._positions = dict.fromkeys(range(cluster.scenario.partitions), 0)

    async def act(self) -> None:
        rng = self.rng
        producer = TransactionalProducer(self, rng.choice(_IDS), rng.choice((1, 2)), rng.choice(_TIMEOUTS_MS))
        self.doing = f"init of {producer.id}"
        await producer.initialize()
        for _ in range(rng.randrange(1, 8)):
            if not self.is_on:
                return
            began = self.world.now
            producer.begin()
            outcome = await self._transact(producer)
            self.put_down(producer, outcome, began)
            if producer.needs_init:
                if rng.random() < 0.5:
                    return
                self.doing = f"another init of {producer.id}"
                await producer.initialize()
            await asyncio.sleep(rng.random() * 0.1)

    async def _transact(self, producer: TransactionalProducer) -> Outcome:
        rng, numbers = self.rng, range(self.cluster.scenario.partitions)
        self.doing = f"transaction of {producer.id}"
        try:
            for _ in range(rng.randrange(1, 4)):
                if rng.random() < 0.4:
                    await self._read(producer, rng.choice(numbers))
                chosen = rng.sample(numbers, rng.randrange(1, len(numbers) + 1))
                if rng.random() < self.cluster.faults.late:
                    await producer.add(chosen)
                    return await self.abort_behind(producer, producer.send_all(chosen))
                await producer.send_all(chosen)
                if self.is_on and rng.random() < 0.05:
                    await asyncio.sleep(rng.random() * 2 * producer.timeout_ms / 1000)
        except OverError:
            if rng.random() < 0.8:
                producer.needs_init = True
                return FAIL
            return await producer.end(commit=False)
        except AbortError:
            return await self.finish(producer, commit=False)
        return await self.finish(producer, commit=rng.random() < 0.8)

    async def _read(self, producer: TransactionalProducer, number: int) -> None:
        try:
            found, self._positions[number] = await self.read(number, self._positions[number])
        except LostError:
            return
        producer.reads += found


class Processor(TransactionClient):
    """A member of the group: consumes, produces and commits offsets in one transaction (KIP-447)."""

    def __init__(self, cluster: Cluster, name: str, history: History) -> None:
        super().__init__(cluster, name, history)
        rng = self.rng
        self._producer = TransactionalProducer(self, name, rng.choice((1, 2)), rng.choice(_TIMEOUTS_MS))
        self._member_id, self._generation = "", -1
        self._positions: dict[int, int] = {}

    async def act(self) -> None:
        self.doing = "join"
        try:
            mine = await self._join()
            await self._resume(mine)
            while self.is_on:
                self._check((await self._ask_group(ApiKey.HEARTBEAT, **self._who)).error_code)
                await asyncio.sleep(self.rng.random() * 0.1)
                for number in mine:
                    found, position = await self.read(number, self._positions[number])
                    if found and not await self._process(number, found, position):
                        await self._resume(mine)
                        break
        except RejoinError:
            return

    async def _ask_group(self, api: ApiKey, /, *, more: float = 0.0, **contents: Any) -> Message:
        return await self.ask_coordinator(0, GROUP, api, more=more, **contents)

    @property
    def _who(self) -> dict[str, Any]:
        return {
            "group_id": GROUP,
            "generation_id": self._generation,
            "member_id": self._member_id,
            "group_instance_id": None,
        }

    async def _join(self) -> list[int]:
        """The partitions that it is to read."""
        joined = await self._ask_group(
            ApiKey.JOIN_GROUP,
            more=4.0,
            group_id=GROUP,
            session_timeout=_SESSION_MS,
            rebalance_timeout=1_000,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
            reason=None,
            member_id=self._member_id,
        )
        if joined.error_code == _MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            raise RejoinError
        self._check(joined.error_code)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        assignments = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            members = sorted(member.member_id for member in joined.members)
            assignments = [
                {"member_id": member, "assignment": json.dumps(INPUTS[at :: len(members)]).encode()}
                for at, member in enumerate(members)
            ]
        synced = await self._ask_group(
            ApiKey.SYNC_GROUP,
            more=4.0,
            **self._who,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        self._check(synced.error_code)
        return list(json.loads(bytes(synced.assignment) or b"[]"))

    async def _resume(self, mine: list[int]) -> None:
        """From the offsets that are committed, when no transaction can change them any more."""
        if self._producer.needs_init:
            self.doing = "init"
            await self._producer.initialize()
        self.doing = "offsets"
        while True:
            found = await self.committed(mine)
            if found is not None:
                break
            self._check((await self._ask_group(ApiKey.HEARTBEAT, **self._who)).error_code)
            await self.pause()
        self._positions = found
        self._is_fresh = True

    async def committed(self, numbers: list[int]) -> dict[int, int] | None:
        """The group's offsets; None if an open transaction may change one."""
        wanted = [{"name": TOPIC, "partition_indexes": numbers}]
        groups = [{"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": wanted}]
        answer = await self._ask_group(ApiKey.OFFSET_FETCH, groups=groups, require_stable=True)
        self._check(answer.groups[0].error_code)
        places = [one for topic in answer.groups[0].topics for one in topic.partitions]
        if any(one.error_code == _UNSTABLE for one in places):
            return None
        for one in places:
            self._check(one.error_code)
        return {one.partition_index: max(one.committed_offset, 0) for one in places}

    async def committed_at_last(self, numbers: list[int]) -> dict[int, int]:
        """The group's offsets, when a coordinator tells them."""
        while True:
            try:
                found = await self.committed(numbers)
            except LostError:
                self._coordinators.clear()
                found = None
            if found is not None:
                return found
            await self.pause()

    async def _process(self, number: int, found: list[Read], position: int) -> bool:
        """One transaction; whether it is committed. Raises `RejoinError`."""
        rng, producer, began = self.rng, self._producer, self.world.now
        outputs = [other for other in range(self.cluster.scenario.partitions) if other not in INPUTS]
        self.doing = "transaction"
        producer.begin()
        producer.reads += found
        rejoins = False
        try:
            await producer.send_all(rng.sample(outputs, rng.randrange(1, len(outputs) + 1)))
            if self.is_on and rng.random() < 0.05:
                await asyncio.sleep(rng.random() * 2 * producer.timeout_ms / 1000)
            committing = producer.commit_offset(GROUP, number, position, self._member_id, self._generation)
            if rng.random() < self.cluster.faults.late:
                outcome = await self.abort_behind(producer, committing)
            else:
                await committing
                outcome = await self.finish(producer, commit=rng.random() < 0.8)
        except OverError:
            producer.needs_init, outcome = True, FAIL
        except AbortError as error:
            rejoins = isinstance(error, RejoinError)
            outcome = await self.finish(producer, commit=False)
        self.put_down(producer, outcome, began, GROUP)
        if outcome == OK:
            self._positions[number] = position
            return not producer.needs_init
        if rejoins or rng.random() < 0.03:
            raise RejoinError
        return False

    def _check(self, code: int) -> None:
        if code == 0:
            return
        if code in _TO_REJOIN:
            if code == 25:
                self._member_id = ""
            raise RejoinError
        assert code in _PASSING, f"{self.name} is told {code} by the coordinator of {GROUP}"
        raise LostError


class Finale(TransactionClient):
    """Reads everything when all is well again."""

    async def act(self) -> None:
        await self.pause()

    async def read_all(self, number: int, end: int) -> None:
        """All of a partition, from its beginning up to ``end``."""
        position, reads = 0, list[Read]()
        while position < end:
            try:
                found, position = await self.read(number, position)
            except LostError:
                await self.pause()
                continue
            reads += found
        self.operations.add(
            Op(client=f"{self.name}-{number}", steps=tuple(reads), outcome=OK, began=self.world.now, is_final=True)
        )
