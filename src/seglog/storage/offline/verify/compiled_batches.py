"""The prefilter of verification: picks out batches that are clean, by compiled loops; needs ``seglog[fast]``.

The loops decide only that `seglog.storage.offline.verify.batches.check_batch` would find nothing, and add such batches
up. Every other batch goes through `check_batch`, so findings have the same text with and without the extra.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from seglog.records.batch import CONTROL_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, Entry
from seglog.records.batch_kernels import Verdict
from seglog.records.batch_tables import BatchTable, byte_array, check_compressed, header_of, walk_batches
from seglog.records.intrinsics import I64
from seglog.storage.offline.verify.batches import check_batch
from seglog.storage.offline.verify.index_entries import IndexEntries, IndexEvidence, slots_at, slots_of, time_slots_of
from seglog.storage.offline.verify.stretch_walk import PlainCheck
from seglog.storage.offline.verify.summary import EpochRun, Facts, ProducerStep, Summary, reduce_steps

_ROWS: Final = 8192
_SMALLEST: Final = 61
Mask = npt.NDArray[np.bool_]
Markers = dict[int, tuple[ProducerStep, ...]]
"""The steps of clean control batches, by position."""


def walk_compiled(facts: Facts, data: bytes, position: int, stop: int, plain: PlainCheck) -> list[Summary]:
    """See `seglog.storage.offline.verify.stretch_walk.CompiledWalk`."""
    parts: list[Summary] = []
    array = byte_array(data)
    for table, _, _ in walk_batches(
        array, base=position, check_records=True, rows=min(_ROWS, len(data) // _SMALLEST + 1)
    ):
        if len(table) and int(table["position"][-1]) - position >= stop:
            table = table[: int(np.searchsorted(table["position"], position + stop))]
        if not len(table):
            continue
        check_compressed(array, table, base=position, limit=facts.limit)
        markers: Markers = {}
        clean = _clean_rows(facts, data, table, position, markers)
        changes = np.flatnonzero(np.diff(clean) | (np.diff(table["leader_epoch"]) != 0)) + 1
        for start, end in pairwise([0, *changes.tolist(), len(table)]):
            rows = table[start:end]
            if clean[start]:
                parts.append(_summary(facts, rows, markers))
                continue
            checked = plain([_entry(row, position) for row in rows])
            parts += checked
            if len(checked) < len(rows):
                return parts
    return parts


def _entry(row: np.void, position: int) -> Entry:
    return Entry(int(row["position"]) - position, int(row["size"]), int(row["base_offset"]), int(row["magic"]))


def _clean_rows(facts: Facts, data: bytes, table: BatchTable, position: int, markers: Markers) -> Mask:
    """Rows about which `check_batch` has nothing to say. Fills ``markers``."""
    is_timed = ((table["attributes"] & TIMESTAMP_TYPE_BIT) == 0) & (table["count"] != 0)
    wrong_time = is_timed & (table["largest_timestamp"] != table["max_timestamp"])
    clean: Mask = (table["verdict"] == Verdict.OK) & (table["magic"] == 2) & ~wrong_time
    sound = np.flatnonzero(clean)
    if len(sound):
        bases = np.ascontiguousarray(table["base_offset"][sound])
        lasts = bases + table["last_offset_delta"][sound]
        if (bases[1:] <= lasts[:-1]).any():  # then no search by offset is possible
            clean[:] = False
            return clean
        clean[sound[_has_wrong_entries(facts.index_entries, table[sound], bases, lasts)]] = False
        starts = np.asarray(facts.epoch_starts, np.int64)
        clean[sound[np.searchsorted(starts, bases, "right") != np.searchsorted(starts, lasts, "right")]] = False
    for k in np.flatnonzero(clean & ((table["attributes"] & CONTROL_BIT) != 0)):
        checked = check_batch(facts, data, _entry(table[k], position), int(table["position"][k]))
        if isinstance(checked, Summary) and not checked.findings:
            markers[checked.start] = checked.steps
        else:
            clean[k] = False
    return clean


def _has_wrong_entries(index: IndexEntries, table: BatchTable, bases: I64, lasts: I64) -> I64:
    """Numbers of rows with an index entry that is not simply right; offsets of ``table`` rise."""
    positions = np.ascontiguousarray(table["position"])
    at = slots_at(index, int(positions[0]), int(positions[-1]) + int(table["size"][-1]))
    of = slots_of(index, int(bases[0]), int(lasts[-1]))
    times = time_slots_of(index, int(bases[0]), int(lasts[-1]))
    wrong: list[I64] = [np.empty(0, np.int64)]
    if at:
        k = np.searchsorted(positions, _slice(index.positions, at), "right") - 1
        is_right = (positions[k] == _slice(index.positions, at)) & (lasts[k] == _slice(index.offsets, at))
        wrong.append(k[~is_right])
    if of:
        k = np.searchsorted(lasts, _slice(index.offsets, of))
        wrong.append(k[positions[k] > _slice(index.positions, of)])
    if times:
        named, stamps = _slice(index.time_offsets, times), _slice(index.timestamps, times)
        k = np.searchsorted(lasts, named)
        peaks = np.maximum.accumulate(table["max_timestamp"])
        is_right = (lasts[k] == named) & (table["max_timestamp"][k] == stamps)
        is_right &= (k == 0) | (peaks[np.maximum(k - 1, 0)] < stamps)
        wrong.append(k[~is_right])
    return np.concatenate(wrong)


def _slice(column: Sequence[int], slots: range) -> I64:
    return np.asarray(column, np.int64)[slots.start : slots.stop]


def _summary(facts: Facts, rows: BatchTable, markers: Markers) -> Summary:
    """Of clean rows of one leader epoch."""
    bases = np.ascontiguousarray(rows["base_offset"])
    lasts = bases + rows["last_offset_delta"]
    gaps = np.flatnonzero(bases[1:] != lasts[:-1] + 1)
    start, first, last = int(rows["position"][0]), int(bases[0]), int(lasts[-1])
    last_position = int(rows["position"][-1])
    end = last_position + int(rows["size"][-1])
    latest = int(np.argmax(rows["max_timestamp"]))
    timestamp = int(rows["max_timestamp"][latest])
    claimed = time_slots_of(facts.index_entries, first, last)
    return Summary(
        start,
        end,
        end,
        batches=len(rows),
        records=int(rows["count"].sum()),
        first_offset=first,
        first_position=start,
        last_offset=last,
        last_position=last_position,
        max_timestamp=max(timestamp, -1),
        max_timestamp_offset=int(lasts[latest]) if timestamp >= 0 else -1,
        gap=int(lasts[gaps[0]]) + 1 if len(gaps) else -1,
        epochs=(EpochRun(int(rows["leader_epoch"][0]), first, int(bases[-1]), start),),
        steps=reduce_steps(_steps(facts, rows, bases, markers), facts.cuts),
        evidence=IndexEvidence(claimed=((claimed.start, claimed.stop),) if claimed else ()),
    )


def _steps(facts: Facts, rows: BatchTable, bases: I64, markers: Markers) -> list[ProducerStep]:
    """For each producer, between any two markers or cuts: the last batch, and the first one of a transaction.

    `reduce_steps` keeps no others.
    """
    numbers = np.flatnonzero(rows["producer_id"] >= 0)
    if not len(numbers):
        return []
    ids, attributes = rows["producer_id"][numbers], rows["attributes"][numbers]
    kinds = attributes & (CONTROL_BIT | TRANSACTIONAL_BIT)
    spans = np.cumsum((attributes & CONTROL_BIT) != 0) + np.searchsorted(facts.cuts, bases[numbers], "right")
    groups = (spans << 8) + kinds
    order = np.lexsort((groups, ids))
    is_edge = np.ones(len(order) + 1, np.bool_)
    is_edge[1:-1] = (np.diff(ids[order]) != 0) | (np.diff(groups[order]) != 0)
    kept = order[is_edge[1:] | (is_edge[:-1] & (kinds[order] != 0))]
    steps: list[ProducerStep] = []
    for row in rows[numbers[np.sort(kept)]]:
        at = int(row["position"])
        steps += markers.get(at) or (ProducerStep(header_of(row), None, at),)
    return steps
