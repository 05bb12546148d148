"""Is there an order of records that explains what all clients were told? Checks of Jepsen's Kafka workload, in Python.

Offsets are told, so everything is linear in the history. Control batches take offsets: neighbours are neighbours among
the offsets that anybody has seen. Each anomaly has Jepsen's name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from tests.cluster_run.history import FAIL, INFO, OK, History, Key, Op, Value

_EXAMPLES: Final = 10


class Anomaly(NamedTuple):
    """Something that cannot be; ``what`` names key, offsets and values."""

    kind: str
    key: Key
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Guarantees that the clients' settings give. ``all_polled``: the history ends with final polls of all keys."""

    is_idempotent: bool = True
    """Neither duplicates, nor records of a producer in another order than it sent them."""
    is_assigned: bool = True
    """Consumers that assign, and do not subscribe, neither skip nor go back between polls."""
    all_polled: bool = True


@dataclass(slots=True)
class Report:
    """Anomalies, and the numbers of operations that were checked."""

    anomalies: list[Anomaly] = field(default_factory=list)
    acknowledged: int = 0
    unknown: int = 0
    failed: int = 0
    read: int = 0
    keys: int = 0

    def kinds(self) -> set[str]:
        return {one.kind for one in self.anomalies}

    def describe(self) -> str:
        counts = (
            f"{self.acknowledged} records acknowledged, {self.unknown} unknown, {self.failed} refused, "
            f"{self.read} reads of {self.keys} partitions; {len(self.anomalies)} anomalies"
        )
        lines = [counts, *(f"{one.kind} {one.key}: {one.what}" for one in self.anomalies[:_EXAMPLES])]
        return "\n".join(lines)


def check(history: History, promises: Promises | None = None) -> Report:
    """All checks of one history."""
    promises = promises or Promises()
    report = Report()
    logs = _Logs(history.ops)
    for op in history.ops:
        count = sum(1 for _ in op.sends)
        report.read += sum(1 for _ in op.reads)
        report.acknowledged += count * (op.outcome == OK)
        report.unknown += count * (op.outcome == INFO)
        report.failed += count * (op.outcome == FAIL)
    report.keys = len(logs.values)
    found = report.anomalies
    found += _inconsistent_offsets(logs)
    found += _lost_writes(history.ops, logs)
    if promises.is_idempotent:
        found += _duplicates(logs)
    found += _aborted_reads(history.ops)
    found += _precommitted_reads(history.ops)
    if promises.all_polled:
        found += _unseen(history.ops)
    found += _polls(history.ops, logs, is_assigned=promises.is_assigned)
    if promises.is_idempotent:  # a retry of another producer may overtake what was sent after it
        found += _sends(history.ops, logs)
    return report


def longest_pauses(history: History) -> dict[Key, float]:
    """Of each key, the seconds between two acknowledgements that came directly one after the other, at most."""
    times: dict[Key, list[float]] = defaultdict(list)
    for op in history.ops:
        if op.outcome == OK:
            for key in {send.key for send in op.sends}:
                times[key].append(op.ended)
    return {
        key: max((after - before for before, after in pairwise(sorted(found))), default=0.0)
        for key, found in times.items()
    }


class _Logs:
    """Each key's offsets and values, from acknowledged sends and from all polls, and their dense order."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.values: dict[Key, dict[int, set[Value]]] = defaultdict(lambda: defaultdict(set))
        self.offsets: dict[Key, dict[Value, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.read: dict[Key, set[Value]] = defaultdict(set)
        self.highest_read: dict[Key, int] = {}
        for op in ops:
            if op.outcome == OK or (op.outcome == INFO and not op.is_transaction):  # else it may be aborted
                for send in op.sends:
                    if send.offset is not None:
                        self._put(send.key, send.offset, send.value)
            for read in op.reads:
                self._put(read.key, read.offset, read.value)
                self.read[read.key].add(read.value)
                self.highest_read[read.key] = max(read.offset, self.highest_read.get(read.key, -1))
        self.rank: dict[Key, dict[int, int]] = {
            key: {offset: at for at, offset in enumerate(sorted(found))} for key, found in self.values.items()
        }

    def _put(self, key: Key, offset: int, value: Value) -> None:
        self.values[key][offset].add(value)
        self.offsets[key][value].add(offset)

    def offset(self, key: Key, value: Value) -> int | None:
        """Where a value is; the first place, if there are several."""
        found = self.offsets[key].get(value)
        return min(found) if found else None


def _inconsistent_offsets(logs: _Logs) -> Iterator[Anomaly]:
    for key, offsets in logs.values.items():
        for offset, values in sorted(offsets.items()):
            if len(values) > 1:
                yield Anomaly("inconsistent-offsets", key, f"offset {offset} is {_list(values)}")


def _lost_writes(ops: Sequence[Op], logs: _Logs) -> Iterator[Anomaly]:
    """Acknowledged, below the highest offset that anybody has read, and read by nobody.

    A send of which nothing is known counts when one of its transaction was read: then it was committed.
    """
    for op in ops:
        known = op.outcome == OK or (op.outcome == INFO and any(send.value in logs.read[send.key] for send in op.sends))
        if not known:
            continue
        for send in op.sends:
            offset = send.offset if send.offset is not None else logs.offset(send.key, send.value)
            if send.value in logs.read[send.key] or offset is None:
                continue
            if offset <= logs.highest_read.get(send.key, -1):
                yield Anomaly("lost-write", send.key, f"{send.value} was acknowledged at {offset} and never read")


def _duplicates(logs: _Logs) -> Iterator[Anomaly]:
    for key, values in logs.offsets.items():
        for value, offsets in values.items():
            if len(offsets) > 1:
                yield Anomaly("duplicate", key, f"{value} is at {_list(offsets)}")


def _aborted_reads(ops: Sequence[Op]) -> Iterator[Anomaly]:
    failed = {(send.key, send.value) for op in ops if op.outcome == FAIL for send in op.sends}
    for op in ops:
        for read in op.reads:
            if (read.key, read.value) in failed:
                yield Anomaly("G1a", read.key, f"{read.value} at {read.offset} was read, and its send had failed")


def _precommitted_reads(ops: Sequence[Op]) -> Iterator[Anomaly]:
    for op in ops:
        own = {(send.key, send.value) for send in op.sends} if op.is_transaction else set()
        for read in op.reads:
            if (read.key, read.value) in own:
                yield Anomaly("precommitted-read", read.key, f"{read.value} was read by its own transaction")


def _unseen(ops: Sequence[Op]) -> Iterator[Anomaly]:
    """Acknowledged, and not among the final polls, which begin at the beginning."""
    seen = {(read.key, read.value) for op in ops if op.is_final for read in op.reads}
    for op in ops:
        if op.outcome == OK:
            for send in op.sends:
                if (send.key, send.value) not in seen:
                    yield Anomaly("unseen", send.key, f"{send.value}, acknowledged at {send.offset}, is not in the end")


def _polls(ops: Sequence[Op], logs: _Logs, *, is_assigned: bool) -> Iterator[Anomaly]:
    """A consumer reads each key in order and leaves nothing out: in one operation, and from one to the next."""
    last: dict[tuple[str, Key], int] = {}
    for op in ops:
        inside: dict[Key, int] = {}
        if op.is_fresh:
            for client, key in [place for place in last if place[0] == op.client]:
                del last[client, key]
        for key in op.rebalanced:
            last.pop((op.client, key), None)
        for read in op.reads:
            before, kind = inside.get(read.key), "int-"
            if before is None:
                before, kind = (last.get((op.client, read.key)) if is_assigned else None), ""
            yield from _one_poll(kind, op.client, read.key, before, read.offset, logs.rank[read.key])
            inside[read.key] = read.offset
        last.update({(op.client, key): offset for key, offset in inside.items()})


def _one_poll(
    kind: str, client: str, key: Key, before: int | None, offset: int, rank: Mapping[int, int]
) -> Iterator[Anomaly]:
    if before is None:
        return
    step = rank[offset] - rank[before]
    if step <= 0:
        yield Anomaly(f"{kind}nonmonotonic-poll", key, f"{client} read {before}, then {offset}")
    elif step > 1:
        yield Anomaly(f"{kind}poll-skip", key, f"{client} read {before}, then {offset}, with {step - 1} between them")


def _sends(ops: Sequence[Op], logs: _Logs) -> Iterator[Anomaly]:
    """A producer's records are in the log in the order in which it sent them: its operations are in that order."""
    last: dict[tuple[str, Key], int] = {}
    for op in sorted(ops, key=lambda op: op.began):
        if op.outcome == FAIL:
            continue
        inside: dict[Key, int] = {}
        for send in op.sends:
            offset = send.offset if send.offset is not None else logs.offset(send.key, send.value)
            if offset is None:
                continue
            before, kind = inside.get(send.key), "int-"
            if before is None:
                before, kind = last.get((op.client, send.key)), ""
            if before is not None and offset <= before:
                what = f"{op.client} sent {send.value} to {offset} after {before}"
                yield Anomaly(f"{kind}nonmonotonic-send", send.key, what)
            inside[send.key] = offset
        last.update({(op.client, key): offset for key, offset in inside.items()})


def _list(values: Iterable[object]) -> str:
    return " and ".join(sorted(map(str, values)))
