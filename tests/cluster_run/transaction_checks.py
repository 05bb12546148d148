"""Checks of transactions, in addition to those of `tests.cluster_run.checks`: Jepsen's list-append workload as far as
Kafka promises anything about it, and exactly-once processing.

A transaction is an operation with ``is_transaction``: ``ok`` if its commit was acknowledged, ``fail`` if it was aborted
or its commit never asked for, ``info`` if nobody knows. It counts as committed if it is ``ok``, or if anything that it
has sent was read. Consumers are read_committed.

Kafka's consumers may see a part of a transaction before the rest, and two transactions may interleave their writes in
two partitions (G0). Cycles in which a write comes after a write are therefore counted and no anomalies; a cycle of
reads of others' writes alone (G1c) is one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tests.cluster_run.checks import Anomaly, Promises, Report, check
from tests.cluster_run.history import INFO, OK, History, Key, Op, Value

Record = tuple[Key, Value]
Graph = Mapping[int, set[int]]
_NOWHERE: Final = -1


@dataclass(slots=True)
class TransactionReport:
    """``report`` has all anomalies. ``g0`` and ``ww_cycles`` count groups of transactions that are in cycles of writes
    alone, and of writes and reads."""

    report: Report = field(default_factory=Report)
    committed: int = 0
    aborted: int = 0
    processed: int = 0
    g0: int = 0
    ww_cycles: int = 0

    def kinds(self) -> set[str]:
        return self.report.kinds()

    def describe(self) -> str:
        return (
            f"{self.committed} transactions committed, {self.aborted} not, {self.processed} records processed; "
            f"{self.g0} cycles of writes, {self.ww_cycles} of writes and reads; {self.report.describe()}"
        )


def check_transactions(
    history: History,
    positions: Mapping[str, Mapping[Key, int]] | None = None,
    promises: Promises | None = None,
) -> TransactionReport:
    """All checks of a history that ends in final polls. ``positions`` are the committed offsets of each group in the
    end."""
    found = TransactionReport(check(history, promises))
    final = {(read.key, read.value): read.offset for op in history.ops if op.is_final for read in op.reads}
    seen = {(read.key, read.value) for op in history.ops for read in op.reads}
    transactions = [op for op in history.ops if op.is_transaction]
    committed = [
        op
        for op in transactions
        if op.outcome == OK or (op.outcome == INFO and any((one.key, one.value) in seen for one in op.sends))
    ]
    found.committed, found.aborted = len(committed), len(transactions) - len(committed)
    anomalies = found.report.anomalies
    anomalies += _torn(committed, final)
    reads, writes = _reads_of_others(committed), _write_order(committed, final)
    anomalies += _read_cycles(committed, reads)
    found.g0 = len(_cycles(writes))
    found.ww_cycles = len(_cycles({node: writes[node] | reads[node] for node in range(len(committed))}))
    for group, ends in (positions or {}).items():
        processing = [op for op in committed if op.group == group]
        found.processed += sum(1 for op in processing for _ in op.reads)
        anomalies += _processing(group, processing, ends, final)
    return found


def _torn(committed: Sequence[Op], final: Mapping[Record, int]) -> Iterator[Anomaly]:
    """In the end a transaction is whole, or absent. What is missing of an acknowledged one is ``unseen``."""
    for op in committed:
        if op.outcome == INFO:
            for send in op.sends:
                if (send.key, send.value) not in final:
                    yield Anomaly("torn", send.key, f"{send.value} is missing from a transaction of {op.client}")


def _reads_of_others(committed: Sequence[Op]) -> dict[int, set[int]]:
    """An edge from each transaction to those that read what it wrote."""
    writer = {(send.key, send.value): at for at, op in enumerate(committed) for send in op.sends}
    edges: dict[int, set[int]] = {at: set() for at in range(len(committed))}
    for at, op in enumerate(committed):
        for read in op.reads:
            other = writer.get((read.key, read.value))
            if other is not None and other != at:
                edges[other].add(at)
    return edges


def _write_order(committed: Sequence[Op], final: Mapping[Record, int]) -> dict[int, set[int]]:
    """An edge from each transaction to those that wrote next in a partition."""
    logs: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for at, op in enumerate(committed):
        for send in op.sends:
            offset = final.get((send.key, send.value), _NOWHERE)
            if offset != _NOWHERE:
                logs[send.key].append((offset, at))
    edges: dict[int, set[int]] = {at: set() for at in range(len(committed))}
    for log in logs.values():
        log.sort()
        for (_, one), (_, other) in pairwise(log):
            if one != other:
                edges[one].add(other)
    return edges


def _read_cycles(committed: Sequence[Op], reads: Graph) -> Iterator[Anomaly]:
    for cycle in _cycles(reads):
        names = ", ".join(f"{committed[at].client} {committed[at].began:.3f}" for at in sorted(cycle))
        yield Anomaly("G1c", "", f"these transactions have read from each other: {names}")


def _cycles(edges: Graph) -> list[list[int]]:
    """The strongly connected components of more than one node (Tarjan), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in edges:
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges[other]))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = stack[stack.index(node) :]
                    del stack[-len(component) :]
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(component)
    return found


def _processing(
    group: str, processing: Iterable[Op], ends: Mapping[Key, int], final: Mapping[Record, int]
) -> Iterator[Anomaly]:
    """Every record below the group's committed offset was processed by one transaction, and none above it: offsets
    are committed with their transaction, or not at all."""
    times = Counter((read.key, read.value) for op in processing for read in op.reads)
    for (key, value), count in times.items():
        if count > 1:
            yield Anomaly("processed-twice", key, f"{value} was processed by {count} transactions of {group}")
        offset = final.get((key, value))
        if offset is not None and offset >= ends.get(key, 0):
            what = f"{group} has processed {value} at {offset}, and committed {ends.get(key, 0)}"
            yield Anomaly("lost-offsets", key, what)
    for (key, value), offset in final.items():
        if offset < ends.get(key, 0) and (key, value) not in times:
            yield Anomaly("not-processed", key, f"{group} has committed {ends[key]}, and not processed {value}")
