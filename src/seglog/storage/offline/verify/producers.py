"""Compares producer snapshots and ``.txnindex`` files with a replay of the log. Pure.

A replay is exact if it begins at offset 0, or at a snapshot of the log's start. Some differences are still legal. When
Kafka loads a log, it forgets a producer that was idle for a day, unless it has an open transaction. Compaction removes
first batches of transactions. A follower that receives several batches at once knows all of them when it writes the
last stable offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from seglog.core.errors import AppendError, CorruptIndexError, CorruptSnapshotError
from seglog.core.types import MAX_INT64
from seglog.records.record import ControlType
from seglog.storage.log.producers import CompletedTxn, Producers, decode_snapshot
from seglog.storage.log.transaction_index import AbortedTxn, decode_aborted
from seglog.storage.offline.findings import Finding, damage, note
from seglog.storage.offline.verify.summary import ProducerStep

_TXN_ENTRY = 34


class TxnIndexFile(NamedTuple):
    """A segment's ``.txnindex``, with ``data`` None if there is no file; ``log`` is the path of the segment's log."""

    log: str
    base_offset: int
    name: str
    data: bytes | None


class Replay(NamedTuple):
    """The producers' steps of each segment in order, and how far they can be trusted.

    ``start`` is the log's first offset. ``gaps``: offsets are missing, as after compaction. ``holes``: bytes could
    not be read, so steps are missing.
    """

    start: int
    segments: Sequence[tuple[TxnIndexFile, Sequence[ProducerStep]]]
    gaps: bool
    holes: bool


class SnapshotFile(NamedTuple):
    offset: int
    file: str
    data: bytes


def check_producers(replay: Replay, snapshots: Sequence[SnapshotFile]) -> list[Finding]:
    """Check all abort indexes and ``snapshots``, which ascend."""
    findings: list[Finding] = []
    decoded: dict[int, Producers] = {}
    for snapshot in snapshots:
        try:
            decoded[snapshot.offset] = decode_snapshot(snapshot.data, snapshot.file)
        except CorruptSnapshotError as error:
            findings.append(damage(snapshot.file, error.reason, position=error.position, offset=snapshot.offset))
    files = {snapshot.offset: snapshot.file for snapshot in snapshots}
    return findings + _ReplayCheck(replay, decoded, files).play()


class _ReplayCheck:
    """The state of the replay: producers, and the transactions that it saw begin."""

    def __init__(self, replay: Replay, snapshots: Mapping[int, Producers], files: Mapping[int, str]) -> None:
        self._replay = replay
        self._snapshots = snapshots
        self._files = files
        self._knows_all = replay.start == 0 or replay.start in snapshots
        self._producers = Producers()
        if replay.start in snapshots:
            self._producers = snapshots[replay.start].copy_of_transactions()
        self._opened: list[tuple[int, int]] = []
        self._findings: list[Finding] = []

    @property
    def _is_exact(self) -> bool:
        return self._knows_all and not self._replay.gaps

    def play(self) -> list[Finding]:
        cuts = [offset for offset in sorted(self._snapshots) if offset > self._replay.start]
        aborted: list[dict[int, AbortedTxn]] = []
        for file, steps in self._replay.segments:
            aborted.append({})
            for step in steps:
                while cuts and cuts[0] <= step.header.base_offset:
                    self._compare(cuts.pop(0))
                completed = self._take(step, file)
                if completed is not None and completed.is_aborted:
                    stable = self._producers.last_stable_offset(completed)
                    aborted[-1][completed.last_offset] = AbortedTxn(
                        completed.producer_id, completed.first_offset, completed.last_offset, stable
                    )
                if completed is not None and completed.first_offset in self._producers.ongoing:
                    self._producers.complete(completed)
                    self._producers.on_high_watermark(MAX_INT64)
        for offset in cuts:
            self._compare(offset)
        for (file, steps), expected in zip(self._replay.segments, aborted, strict=True):
            self._findings += self._check_txn_index(file, steps, expected)
        return self._findings

    def _take(self, step: ProducerStep, file: TxnIndexFile) -> CompletedTxn | None:
        header = step.header
        before = self._producers.entries.get(header.producer_id)
        try:
            completed = self._producers.replay(header, step.control)
        except AppendError as error:
            if not self._replay.holes:
                self._findings.append(note(file.log, str(error), position=step.position, offset=header.base_offset))
            return None
        after = self._producers.entries.get(header.producer_id)
        opened = after.current_txn_first_offset if after is not None else None
        if opened is not None and (before is None or before.current_txn_first_offset is None):
            self._opened.append((opened, header.producer_id))
        return completed

    # Snapshots

    def _compare(self, offset: int) -> None:
        if self._replay.holes:
            return
        found, known = self._snapshots[offset].entries, self._producers.entries
        file = self._files[offset]
        for producer_id, entry in found.items():
            if producer_id not in known:
                last = entry.batches[-1].last_offset if entry.batches else -1
                if self._is_exact or (last >= self._replay.start and not self._replay.gaps):
                    self._findings.append(damage(file, f"producer {producer_id} is not in the log", offset=offset))
                continue
            reason = self._difference(producer_id, offset)
            if reason is not None:
                self._findings.append(damage(file, f"producer {producer_id}: {reason}", offset=offset))
        for producer_id, entry in known.items():
            if producer_id not in found and entry.current_txn_first_offset is not None:
                reason = (
                    f"producer {producer_id} has a transaction open since {entry.current_txn_first_offset}, which is "
                    "missing here"
                )
                self._findings.append(damage(file, reason, offset=offset))

    def _difference(self, producer_id: int, offset: int) -> str | None:
        """How a snapshot contradicts the log on a producer; None if it does not."""
        found, known = self._snapshots[offset].entries[producer_id], self._producers.entries[producer_id]
        batch, last = found.batches[-1:], known.batches[-1:]
        is_behind = bool(batch) and (not last or batch[0].last_offset > last[0].last_offset)
        if is_behind and not self._is_exact:  # the log has lost the batches that the snapshot knows
            return None
        if found.epoch != known.epoch:
            return f"its epoch is {found.epoch}, in the log {known.epoch}"
        if found.last_timestamp != known.last_timestamp and not (
            self._replay.gaps and found.last_timestamp > known.last_timestamp
        ):
            return f"its last timestamp is {found.last_timestamp}, in the log {known.last_timestamp}"
        if batch and batch[0][:3] != (last[0][:3] if last else None):
            return f"its last batch is {batch[0][:3]}, in the log {last[0][:3] if last else None}"
        if found.coordinator_epoch not in (known.coordinator_epoch, -1) and (
            self._is_exact or known.coordinator_epoch >= 0
        ):
            return f"its coordinator's epoch is {found.coordinator_epoch}, in the log {known.coordinator_epoch}"
        txn, open_since = found.current_txn_first_offset, known.current_txn_first_offset
        if txn != open_since and (self._is_exact or txn is None or (open_since is not None and txn > open_since)):
            return f"its transaction is open since {txn}, in the log since {open_since}"
        return None

    # Abort indexes

    def _check_txn_index(
        self, file: TxnIndexFile, steps: Sequence[ProducerStep], expected: Mapping[int, AbortedTxn]
    ) -> list[Finding]:
        try:
            entries = decode_aborted(file.data or b"", file.name, base_offset=file.base_offset)
        except CorruptIndexError as error:
            return [damage(file.name, error.reason, position=error.position)]
        if self._replay.holes:
            return []
        markers = {
            step.header.base_offset: step.header.producer_id
            for step in steps
            if step.control is not None and step.control.type is ControlType.ABORT
        }
        findings = []
        for slot, txn in enumerate(entries):
            reason = self._txn_difference(txn, markers, expected.get(txn.last_offset))
            if reason is not None:
                reason = f"entry {slot}, producer {txn.producer_id}, {txn.first_offset} to {txn.last_offset}: {reason}"
                findings.append(damage(file.name, reason, position=slot * _TXN_ENTRY, offset=txn.last_offset))
        listed = {txn.last_offset for txn in entries}
        for txn in expected.values():
            if txn.last_offset not in listed:
                reason = (
                    f"producer {txn.producer_id} aborted {txn.first_offset} to {txn.last_offset}, which is missing here"
                )
                findings.append(damage(file.name, reason, offset=txn.last_offset))
        return findings

    def _txn_difference(self, txn: AbortedTxn, markers: Mapping[int, int], known: AbortedTxn | None) -> str | None:
        if markers.get(txn.last_offset) != txn.producer_id:
            return "the log has no such ABORT marker"
        if known is None:
            return "the log has no batch of it" if self._is_exact else None
        if txn.first_offset != known.first_offset and (self._is_exact or txn.first_offset > known.first_offset):
            return f"in the log it begins at {known.first_offset}"
        if txn.last_stable_offset == known.last_stable_offset:
            return None
        if txn.last_stable_offset > txn.last_offset + 1:
            later = self._opened[bisect_left(self._opened, (txn.last_offset, 0)) :]
            if txn.last_stable_offset == next((first for first, who in later if who != txn.producer_id), None):
                return None
        elif not self._is_exact and txn.last_stable_offset < known.last_stable_offset:
            return None
        return f"its last stable offset is {txn.last_stable_offset}, by the log {known.last_stable_offset}"
