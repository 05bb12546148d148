"""The summaries of `seglog.storage.offline.verify.batches`, from tables of compiled loops; needs ``seglog[fast]``.

The loops only decide that a batch is sound. Whatever is not, and all that is rare, is looked at in plain Python, so
that a finding has the same words with and without the extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from seglog.core.errors import CorruptError, UnsupportedFormatError
from seglog.records import view
from seglog.records.batch import CONTROL_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, Entry
from seglog.records.kernels import Verdict
from seglog.records.machine import I64
from seglog.records.record import ControlRecord, Record
from seglog.records.tables import BatchTable, byte_array, check_compressed, header_of, walk_batches
from seglog.storage.offline.verify.batches import look, of_columns
from seglog.storage.offline.verify.indexes import (
    Columns,
    IndexTally,
    PieceCheck,
    Ranges,
    ranges_of,
    slots_at,
    slots_of,
    time_slots_of,
)
from seglog.storage.offline.verify.stretches import Slow
from seglog.storage.offline.verify.summary import EpochRun, Facts, Step, Summary

_ROWS: Final = 8192
_SMALLEST: Final = 61
Mask = npt.NDArray[np.bool_]
Controls = dict[int, ControlRecord | None]
"""Markers by the positions of their batches."""


def walk_fast(facts: Facts, data: bytes, position: int, stop: int, slow: Slow) -> tuple[list[Summary], int]:
    """See `seglog.storage.offline.verify.stretches.FastWalk`."""
    parts: list[Summary] = []
    used = 0
    array = byte_array(data)
    for table, _, _ in walk_batches(
        array, base=position, check_records=True, rows=min(_ROWS, len(data) // _SMALLEST + 1)
    ):
        if len(table) and int(table["position"][-1]) - position >= stop:
            table = table[: int(np.searchsorted(table["position"], position + stop))]
        check_compressed(array, table, base=position, limit=facts.limit)
        controls: Controls = {}
        for run, is_sound in _runs(table, _sound_rows(facts, data, table, position, controls)):
            if is_sound:
                parts += _summaries(facts, data, run, position, controls)
            else:
                summary, taken = slow([_entry(row, position) for row in run])
                if taken:
                    parts.append(summary)
                if taken < len(run):
                    return parts, summary.end - position
            used = int(run["position"][-1]) + int(run["size"][-1]) - position
    return parts, used


def _entry(row: np.void, position: int) -> Entry:
    return Entry(int(row["position"]) - position, int(row["size"]), int(row["base_offset"]), int(row["magic"]))


def _sound_rows(facts: Facts, data: bytes, table: BatchTable, position: int, controls: Controls) -> Mask:
    """Rows about which plain Python would have nothing to say; fills ``controls`` for them."""
    is_timed = ((table["attributes"] & TIMESTAMP_TYPE_BIT) == 0) & (table["count"] != 0)
    wrong_time = is_timed & (table["largest_timestamp"] != table["max_timestamp"])
    sound: Mask = (table["verdict"] == Verdict.OK) & (table["magic"] == 2) & ~wrong_time
    for k in np.flatnonzero(sound & ((table["attributes"] & CONTROL_BIT) != 0)):
        at = int(table["position"][k])
        looked = look(facts, data, _entry(table[k], position), at)
        if looked.row is None or looked.findings:
            sound[k] = False
        else:
            controls[at] = looked.row.control
    return sound


def _runs(table: BatchTable, sound: Mask) -> Iterator[tuple[BatchTable, bool]]:
    """Neighbouring rows that are all sound, or all not."""
    if not len(table):
        return
    changes = np.flatnonzero(np.diff(sound)) + 1
    for start, end in pairwise([0, *changes.tolist(), len(table)]):
        yield table[start:end], bool(sound[start])


def _summaries(facts: Facts, data: bytes, table: BatchTable, position: int, controls: Controls) -> Iterator[Summary]:
    """Of sound rows: one for each piece in which offsets rise."""
    bases = np.ascontiguousarray(table["base_offset"])
    lasts = bases + table["last_offset_delta"]
    falls = np.flatnonzero(bases[1:] <= lasts[:-1]) + 1
    for start, end in pairwise([0, *falls.tolist(), len(table)]):
        piece, base, last = table[start:end], bases[start:end], lasts[start:end]
        timestamps = np.ascontiguousarray(piece["max_timestamp"])
        positions = np.ascontiguousarray(piece["position"])
        columns = Columns(*_sequences(positions, base, last, timestamps, np.maximum.accumulate(timestamps)))
        end = int(positions[-1]) + int(piece["size"][-1])
        yield of_columns(
            facts,
            columns,
            end=end,
            records=int(piece["count"].sum()),
            gap=_first_gap(base, last),
            epochs=_epoch_runs(piece, base),
            steps=_steps(facts, piece, base, controls),
            tally=_check_indexes(facts, columns, end, data, piece, position),
        )


def _first_gap(bases: I64, lasts: I64) -> int:
    gaps = np.flatnonzero(bases[1:] != lasts[:-1] + 1)
    return int(lasts[gaps[0]]) + 1 if len(gaps) else -1


def _sequences(*arrays: I64) -> tuple[Sequence[int], ...]:
    """Arrays are sequences of numbers as far as bisect and indexing go."""
    return tuple(array.data for array in arrays)


def _epoch_runs(table: BatchTable, bases: I64) -> tuple[EpochRun, ...]:
    epochs = np.ascontiguousarray(table["leader_epoch"])
    changes = np.flatnonzero(np.diff(epochs)) + 1
    return tuple(
        EpochRun(int(epochs[start]), int(bases[start]), int(bases[end - 1]), int(table["position"][start]))
        for start, end in pairwise([0, *changes.tolist(), len(table)])
    )


# Producers


def _steps(facts: Facts, table: BatchTable, bases: I64, controls: Controls) -> tuple[Step, ...]:
    """As `summary.reduce_steps` chooses them."""
    rows = np.flatnonzero(table["producer_id"] >= 0)
    if not len(rows):
        return ()
    ids = table["producer_id"][rows]
    attributes = table["attributes"][rows]
    control = (attributes & CONTROL_BIT) != 0
    cuts = np.searchsorted(np.asarray(facts.cuts, np.int64), bases[rows], "right")
    order = np.argsort(ids, kind="stable")
    markers_before = np.cumsum(control[order]) - control[order]
    group = np.flatnonzero(_changes(ids[order], markers_before, cuts[order]))
    numbers = np.zeros(len(rows), np.int64)
    numbers[group[1:]] = 1
    numbers = np.cumsum(numbers)
    kept = np.zeros(len(rows), np.bool_)
    kept[order[control[order]]] = True
    is_data = ~control[order]
    kept[_edges(order, numbers, is_data, last=True)] = True
    kept[_edges(order, numbers, is_data & ((attributes[order] & TRANSACTIONAL_BIT) != 0), last=False)] = True
    found = []
    for k in rows[kept]:
        at = int(table["position"][k])
        found.append(Step(header_of(table[k]), controls.get(at), at))
    return tuple(found)


def _changes(*columns: npt.NDArray[np.int64]) -> Mask:
    """Rows that differ from the one before them in some column; the first does."""
    changed = np.ones(len(columns[0]), np.bool_)
    changed[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return changed


def _edges(order: I64, numbers: I64, wanted: Mask, *, last: bool) -> I64:
    """The first or last wanted row of each group, as indexes of ``order``'s values."""
    rows, groups = order[wanted], numbers[wanted]
    if not len(rows):
        return rows
    edge = np.ones(len(rows), np.bool_)
    if last:
        edge[:-1] = groups[1:] != groups[:-1]
    else:
        edge[1:] = groups[1:] != groups[:-1]
    found: I64 = rows[edge]
    return found


# Indexes


def _check_indexes(
    facts: Facts, columns: Columns, end: int, data: bytes, table: BatchTable, position: int
) -> IndexTally:
    """As `rows.check_indexes`, but plain Python sees only entries that are not simply right."""
    probes = facts.probes
    first, last = columns.bases[0], columns.lasts[-1]
    at = slots_at(probes, columns.positions[0], end)
    of = slots_of(probes, first, last)
    times = time_slots_of(probes, first, last)
    if not at and not of and not times:
        return IndexTally()
    positions, lasts = np.asarray(columns.positions), np.asarray(columns.lasts)
    wrong_at: list[int] = []
    wrong_of: list[int] = []
    if at:
        entry_positions, entry_offsets = (
            np.asarray(column)[at.start : at.stop] for column in (probes.positions, probes.offsets)
        )
        k = np.minimum(np.searchsorted(positions, entry_positions), len(positions) - 1)
        right = (positions[k] == entry_positions) & (lasts[k] == entry_offsets)
        wrong_at = (np.flatnonzero(~right) + at.start).tolist()
    if of:
        entry_positions, entry_offsets = (
            np.asarray(column)[of.start : of.stop] for column in (probes.positions, probes.offsets)
        )
        k = np.searchsorted(lasts, entry_offsets)
        wrong_of = (np.flatnonzero(positions[k] > entry_positions) + of.start).tolist()
    claimed, wrong_times = _look_at_times(
        columns, np.asarray(probes.timestamps), np.asarray(probes.time_offsets), times
    )
    if not wrong_at and not wrong_of and not wrong_times:
        return IndexTally(claimed=claimed)

    def records(k: int) -> Sequence[Record]:
        try:
            return view.decode(data, _entry(table[k], position), limit=facts.limit)
        except (CorruptError, UnsupportedFormatError):
            return ()

    check = PieceCheck(probes, Columns(*(list(column) for column in columns)), records)
    for slot in wrong_at:
        check.at_position(slot)
    for slot in wrong_of:
        check.at_offset(slot)
    for slot in wrong_times:
        check.at_time(slot)
    return check.tally(claimed)


def _look_at_times(columns: Columns, timestamps: I64, offsets: I64, slots: range) -> tuple[Ranges, list[int]]:
    """Which entries are about batches here, and which of these are not simply right."""
    if not slots:
        return (), []
    lasts, peaks = np.asarray(columns.lasts), np.asarray(columns.peaks)
    times, named = timestamps[slots.start : slots.stop], offsets[slots.start : slots.stop]
    k = np.searchsorted(lasts, named)
    earlier = np.where(k > 0, peaks[np.maximum(k - 1, 0)], -1)
    right = (lasts[k] == named) & (np.asarray(columns.timestamps)[k] == times) & (earlier < times)
    here = np.asarray(columns.bases)[k] <= named
    claimed = ranges_of((np.flatnonzero(here) + slots.start).tolist())
    return claimed, (np.flatnonzero(here & ~right) + slots.start).tolist()
