"""A log directory with a transaction in each state, left by a broker that was killed; and a check of a broker that has
opened it, which must finish them.

Each transaction has a topic and a group of its own: one record ``value``, and in the group an offset that was committed
before and another one in the transaction. No broker stops between the decision and the markers when it is told to: the
logs are rewound to there after it was killed, as a crash would have left them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from seglog.coordinators.transactions.log_records import decode
from seglog.protocol.apis import ApiKey
from seglog.records.batch import CONTROL_BIT, BatchHeader, entries, read_header
from seglog.records.record import Record, decode_records
from tests.broker.broker_thread import Wire
from tests.broker.transactional_producer import (
    FENCED,
    INVALID_EPOCH,
    NO_ID,
    UNSTABLE,
    TransactionalProducer,
    fetch,
)
from tests.kit.waiting import wait_until

BEFORE: Final = 3
"""The offset that each group has committed before."""
WITHIN: Final = 7
"""The offset that it commits in the transaction."""
VALUE: Final = b"value"
ONE_PARTITION: Final = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "log.retention.ms": "-1",
}
EXPIRED: Final = "expired"
EXPIRING: Final = {
    "transactional.id.expiration.ms": "1",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "50",
}
"""Settings of the broker that `leave_expired` is for."""
LEAVING: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000"}
"""Settings of the broker that is killed: nothing times out."""
FINISHING: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
"""Settings of the broker that continues."""
_COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
_SHORT_MS: Final = 1_000
_LONG_MS: Final = 800_000


class LeftTransaction(NamedTuple):
    """``plan`` is the fate of an open transaction: its producer continues, another takes its id, or it times out."""

    id: str
    version: int
    state: str
    plan: str
    producer_id: int
    epoch: int

    @property
    def topic(self) -> str:
        return f"topic-{self.id}"

    @property
    def group(self) -> str:
        return f"group-{self.id}"

    @property
    def is_committed(self) -> bool:
        return self.state in _COMMITTED


_PLANS: Final = (
    ("Empty", ""),
    ("CompleteCommit", ""),
    ("CompleteAbort", ""),
    ("Ongoing", "continued"),
    ("Ongoing", "replaced"),
    ("Ongoing", "timed-out"),
    ("PrepareCommit", ""),
    ("PrepareAbort", ""),
)


class Stoppable(Protocol):
    """A broker in a separate process."""

    @property
    def bootstrap(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


def leave(brokers: Sequence[Stoppable], log_dir: Path) -> tuple[list[LeftTransaction], int]:
    """Run two brokers on one directory, with the settings `EXPIRING` and `LEAVING`, and kill the second one. Returns
    the transactions, and the producer id of the deleted one."""
    expiring, leaving = brokers
    expiring.start()
    try:
        with Wire(expiring.bootstrap) as wire:
            expired = leave_expired(wire)
    finally:
        expiring.stop()
    leaving.start()
    try:
        with Wire(leaving.bootstrap) as wire:
            left = leave_all(wire)
    finally:
        leaving.kill()
    rewind(log_dir, left)
    return left, expired


def leave_expired(wire: Wire) -> int:
    """A transactional id that is deleted again; its producer id."""
    expired = TransactionalProducer(wire, EXPIRED)
    wait_until(lambda: _state(wire, EXPIRED) is None, "the transactional id to expire")
    return int(expired.producer_id)


def leave_all(wire: Wire) -> list[LeftTransaction]:
    """One of each, of both transaction versions. Kill the broker then, and `rewind`."""
    made = [_begin(wire, state, plan, version) for state, plan in _PLANS for version in (0, 2)]
    ended = [one for one in made if one[1].startswith("Complete")]
    for producer, state, _ in ended:
        assert producer.end(commit=state.endswith("Commit")).error_code == 0
        wait_until(lambda name=producer.id, state=state: _state(wire, name) == state, state)  # type: ignore[misc]
    prepared = [one for one in made if one[1].startswith("Prepare")]
    for producer, state, _ in prepared:
        assert producer.end(commit=state.endswith("Commit")).error_code == 0
    for producer, state, _ in prepared:
        complete = state.replace("Prepare", "Complete")
        wait_until(lambda name=producer.id, state=complete: _state(wire, name) == state, complete)  # type: ignore[misc]
    left = [
        LeftTransaction(producer.id, producer.version, state, plan, producer.producer_id, producer.epoch)
        for producer, state, plan in made
    ]
    for one in left:
        assert one.state.startswith("Prepare") or _state(wire, one.id) == one.state
    return left


def _begin(wire: Wire, state: str, plan: str, version: int) -> tuple[TransactionalProducer, str, str]:
    name = f"{(plan or state).lower()}-{version}"
    topic = wire.create_topic(f"topic-{name}")
    wait_until(lambda: fetch(wire, topic).error_code == 0, f"{topic} to have a leader")
    _commit_before(wire, name)
    timeout = _SHORT_MS if plan == "timed-out" else _LONG_MS
    producer = TransactionalProducer(wire, name, version, timeout)
    for _ in range(3 if state.startswith("Complete") else 0):  # some have had several epochs
        producer = TransactionalProducer(wire, name, version, timeout)
    if state != "Empty":
        assert producer.send(topic, VALUE) == 0
        _commit_within(wire, producer, version)
    return producer, state, plan


def create_internal_topics(wire: Wire) -> None:
    """``__transaction_state`` and ``__consumer_offsets``, by using both."""
    TransactionalProducer(wire, "first")
    wire.create_topic("topic-first")
    _commit_before(wire, "first")


def _commit_before(wire: Wire, name: str) -> None:
    group = f"group-{name}"
    wire.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=[group])
    partition = {"partition_index": 0, "committed_offset": BEFORE, "committed_metadata": ""}

    def code() -> int:
        answer = wire.ask(
            ApiKey.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": f"topic-{name}", "partitions": [partition]}],
        )
        return int(answer.topics[0].partitions[0].error_code)

    wait_until(lambda: code() == 0, "the group's coordinator")


def _commit_within(wire: Wire, producer: TransactionalProducer, version: int) -> None:
    group = f"group-{producer.id}"
    if version < 2:
        answer = producer.until_free(lambda: wire.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, **producer.named, group_id=group))
        assert answer.error_code == 0
    partition = {"partition_index": 0, "committed_offset": WITHIN, "committed_metadata": ""}
    answer = wire.ask(
        ApiKey.TXN_OFFSET_COMMIT,
        5 if version >= 2 else 3,
        **producer.named,
        group_id=group,
        generation_id=-1,
        member_id="",
        topics=[{"name": f"topic-{producer.id}", "partitions": [partition]}],
    )
    assert answer.topics[0].partitions[0].error_code == 0


def rewind(log_dir: Path, left: Iterable[LeftTransaction]) -> None:
    """Take the ends of prepared transactions out of the logs. Those that abort keep their topics' markers: these were
    written when the coordinator died."""
    prepared = [one for one in left if one.state.startswith("Prepare")]
    ids, producer_ids = {one.id for one in prepared}, {one.producer_id for one in prepared}

    def is_end(_: BatchHeader, records: list[Record]) -> bool:
        decoded = [decode(one.key, one.value) for one in records if one.key is not None]
        return any(
            one is not None and one[0] in ids and one[1] is not None and one[1].state.label.startswith("Complete")
            for one in decoded
        )

    def is_marker(header: BatchHeader, _: list[Record]) -> bool:
        return bool(header.attributes & CONTROL_BIT) and header.producer_id in producer_ids

    _take_out(log_dir / "__transaction_state-0", is_end)
    for directory in ("__consumer_offsets-0", *(f"{one.topic}-0" for one in prepared if one.is_committed)):
        _take_out(log_dir / directory, is_marker)


def _take_out(directory: Path, is_wanted: Callable[[BatchHeader, list[Record]], bool]) -> None:
    """The batches go, and those behind them move up: a base offset is not in a batch's CRC."""
    segment = max(directory.glob("*.log"))
    data = segment.read_bytes()
    kept = bytearray()
    gone = 0
    for entry in entries(memoryview(data)[: _end_of(data)]):
        header = read_header(data, entry.position)
        if is_wanted(header, decode_records(data, header, entry.position)):
            gone += header.records_count
            continue
        batch = bytearray(data[entry.position : entry.position + entry.size])
        batch[:8] = (header.base_offset - gone).to_bytes(8, "big")
        kept += batch
    assert gone
    segment.write_bytes(kept)


def _end_of(data: bytes) -> int:
    """Without the zeros of a file that was allocated for more."""
    position = 0
    while position + 12 <= len(data) and (size := int.from_bytes(data[position + 8 : position + 12], "big")):
        position += 12 + size
    return position


def written_at_ms(log_dir: Path) -> int:
    """The time of the last record of `__transaction_state`."""
    data = max(log_dir.glob("__transaction_state-0/*.log")).read_bytes()
    batches = entries(memoryview(data)[: _end_of(data)])
    return max(read_header(data, entry.position).max_timestamp for entry in batches)


# Afterwards


def check_finished(wire: Wire, left: Iterable[LeftTransaction]) -> None:
    """Wait until the broker has finished what was decided and what has timed out; end the others; check all."""
    transactions = list(left)
    for one in transactions:
        wire.ask(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=[one.id])
        wire.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=[one.group])
    wait_until(lambda: _state(wire, EXPIRED) is None, "the coordinator to be loaded")
    for one in transactions:
        _finish(wire, one)
    for one in transactions:
        _check(wire, one)
    assert TransactionalProducer(wire, EXPIRED).epoch == 0


def check_new_ids(wire: Wire, left: Iterable[LeftTransaction], expired: int) -> None:
    """A new producer gets an id that none of the directory has had."""
    answer = wire.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout=1000)
    assert answer.producer_id > max(expired, *(one.producer_id for one in left))


def _finish(wire: Wire, one: LeftTransaction) -> None:
    if one.plan == "continued":
        wait_until(lambda: _offset(wire, one, stable=True) == (-1, UNSTABLE), f"{one.group} to be unstable")
        producer = _producer_of(wire, one)
        assert producer.produce(one.topic, b"more") == 0
        assert producer.end().error_code == 0
    elif one.plan == "replaced":
        wait_until(lambda: _offset(wire, one, stable=True) == (-1, UNSTABLE), f"{one.group} to be unstable")
        producer = TransactionalProducer(wire, one.id, one.version)
        assert (producer.producer_id, producer.epoch) == (one.producer_id, one.epoch + 2)
        assert producer.send(one.topic, b"new") == 0
        assert producer.end().error_code == 0
    else:
        state = {"timed-out": "CompleteAbort"}.get(one.plan, one.state.replace("Prepare", "Complete"))
        wait_until(lambda: _state(wire, one.id) == state, f"{one.id} to be {state}")
    if one.plan in ("replaced", "timed-out"):
        assert _producer_of(wire, one).produce(one.topic, b"zombie") in (FENCED, INVALID_EPOCH)


def _check(wire: Wire, one: LeftTransaction) -> None:
    wait_until(lambda: _is_decided(wire, one.topic), f"the end of the transaction in {one.topic}")
    expected = {"continued": [VALUE, b"more"], "replaced": [b"new"]}.get(one.plan, [VALUE] if one.is_committed else [])
    assert _read_committed(wire, one.topic) == expected, one
    moved = one.is_committed or one.plan == "continued"
    wait_until(lambda: _offset(wire, one, stable=True)[1] == 0, f"the offsets of {one.group} to be decided")
    assert _offset(wire, one, stable=True) == (WITHIN if moved else BEFORE, 0), one


def _producer_of(wire: Wire, one: LeftTransaction) -> TransactionalProducer:
    """The producer that was there before, as if it had only lost its connection."""
    producer = object.__new__(TransactionalProducer)
    producer.wire, producer.id, producer.version = wire, one.id, one.version
    producer.producer_id, producer.epoch = one.producer_id, one.epoch
    producer.sequences = {(one.topic, 0): 1}
    return producer


def _is_decided(wire: Wire, topic: str) -> bool:
    found = fetch(wire, topic)
    return bool(found.error_code == 0 and found.last_stable_offset == found.high_watermark)


def _state(wire: Wire, transactional_id: str) -> str | None:
    """None if there is no such id."""
    (found,) = wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[transactional_id]).transaction_states
    return None if found.error_code == NO_ID else str(found.transaction_state)


def _offset(wire: Wire, one: LeftTransaction, *, stable: bool) -> tuple[int, int]:
    asked = {"group_id": one.group, "topics": [{"name": one.topic, "partition_indexes": [0]}]}
    answer = wire.ask(ApiKey.OFFSET_FETCH, 9, groups=[asked], require_stable=stable)
    if answer.groups[0].error_code:
        return -1, int(answer.groups[0].error_code)
    found = answer.groups[0].topics[0].partitions[0]
    return int(found.committed_offset), int(found.error_code)


def _read_committed(wire: Wire, topic: str) -> list[bytes]:
    """As a consumer does it: without the batches of aborted transactions, by the list that comes with them."""
    found = fetch(wire, topic)
    aborted = sorted((one.first_offset, one.producer_id) for one in found.aborted_transactions or ())
    values: list[bytes] = []
    open_aborts: set[int] = set()
    for entry in entries(memoryview(found.records or b"")):
        header = read_header(found.records, entry.position)
        while aborted and aborted[0][0] <= header.last_offset:
            open_aborts.add(aborted.pop(0)[1])
        if header.attributes & CONTROL_BIT:
            open_aborts.discard(header.producer_id)
        elif header.producer_id not in open_aborts:
            values += [one.value or b"" for one in decode_records(found.records, header, entry.position)]
    return values
