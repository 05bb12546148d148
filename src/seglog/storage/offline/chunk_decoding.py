"""Decodes the wanted records of chunks of whole batches, wherever the bytes come from: a file or a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seglog.core.errors import CorruptBatchError, CorruptError, UnsupportedFormatError
from seglog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from seglog.records.batch_kernels import Verdict
from seglog.records.batch_tables import BatchTable
from seglog.records.column_decoding import DecodedRows, Selection, decode_parts, plain_error
from seglog.records.columns import NOWHERE, SourcePartition
from seglog.storage.log.transaction_index import AbortedTxn


class BatchExclusion(NamedTuple):
    """The batches to leave out: control batches, unless included, and those of ``aborted`` transactions."""

    include_control: bool = False
    aborted: Sequence[AbortedTxn] = ()


NOTHING: Final = BatchExclusion()


class Chunk(NamedTuple):
    """The ``table`` of the batches that start in ``data``, which begins at ``position`` of a file or a response."""

    data: bytes
    position: int
    table: BatchTable


OnDamage = Callable[[CorruptError, int], None]
"""Receives damage, with file and position, and the number of bytes that are left out for it."""


def decode_chunks(
    chunks: Iterable[Chunk],
    wanted: Selection,
    origin: SourcePartition = NOWHERE,
    *,
    leave_out: BatchExclusion = NOTHING,
    on_damage: OnDamage | None = None,
    to_end: bool = False,
) -> Iterator[DecodedRows]:
    """The records with ``wanted.low <= offset < wanted.high``, and the end offset of each part.

    Items without rows have the offset up to which everything was read. Stops behind the last wanted batch, or checks
    all with ``to_end``. Damage to these offsets raises a `CorruptError` with position and offset; with ``on_damage``
    damaged batches are left out.
    """
    for chunk in _sound(chunks, wanted, on_damage, to_end=to_end):
        chosen = chunk.table[_selected(chunk.table, wanted, leave_out)]
        if on_damage is None:
            yield from decode_parts(chunk.data, chosen, wanted, origin, base=chunk.position)
        else:
            yield from _decode_what_can_be(chunk, chosen, wanted, origin, on_damage)
        if len(chunk.table):
            yield DecodedRows(int(last_offsets(chunk.table)[-1]) + 1, None)


def _decode_what_can_be(
    chunk: Chunk, chosen: BatchTable, wanted: Selection, origin: SourcePartition, on_damage: OnDamage
) -> Iterator[DecodedRows]:
    """Decode around damaged records: the batches before them one by one."""
    rest = chosen
    while len(rest):
        try:
            for decoded in decode_parts(chunk.data, rest, wanted, origin, base=chunk.position):
                yield decoded
                rest = rest[int(np.searchsorted(last_offsets(rest), decoded.upto)) :]
            return
        except CorruptError:
            pass
        is_found = False
        while not is_found and len(rest):
            one, rest = rest[:1], rest[1:]
            try:
                yield from decode_parts(chunk.data, one, wanted, origin, base=chunk.position)
            except CorruptError as error:
                is_found = True
                on_damage(error, int(one["size"][0]))


def last_offsets(table: BatchTable) -> npt.NDArray[np.int64]:
    """The last offset of each batch."""
    last: npt.NDArray[np.int64] = table["base_offset"] + table["last_offset_delta"]
    return last


def _sound(chunks: Iterable[Chunk], wanted: Selection, on_damage: OnDamage | None, *, to_end: bool) -> Iterator[Chunk]:
    """Chunks of batches that may have wanted offsets, with right CRCs and rising offsets.

    The header of a damaged batch does not count: sound batches around it decide whether it may have wanted offsets.
    """
    highest = -1
    for data, position, table in chunks:
        if not len(table):  # a chunk that holds only a part of a larger batch, which is read next
            continue
        sound = table["verdict"] == Verdict.OK
        begins = np.flatnonzero(sound & (table["base_offset"] <= wanted.low))
        ends = np.flatnonzero(sound & (last_offsets(table) >= wanted.high - 1))
        is_last = len(ends) > 0 and not to_end
        chosen = slice(int(begins[-1]) if len(begins) else 0, int(ends[0]) + 1 if is_last else len(table))
        upto = np.maximum.accumulate(np.concatenate(([highest], np.where(sound, last_offsets(table), -1))))
        if on_damage is not None:
            good = sound & (table["base_offset"] > upto[:-1])
            for index in np.flatnonzero(~good[chosen]) + chosen.start:
                on_damage(_damage(data, table, int(index), upto, position, wanted), int(table["size"][index]))
            yield Chunk(data, position, table[chosen][good[chosen]])
        else:
            for index in np.flatnonzero((~sound)[chosen])[:1] + chosen.start:
                _check_order(table[:index], upto)
                raise plain_error(data, table[index], base=position, limit=wanted.limit)
            _check_order(table[: chosen.stop], upto)
            yield Chunk(data, position, table[chosen])
        highest = int(upto[-1])
        if is_last:
            return


def _check_order(table: BatchTable, highest: npt.NDArray[np.int64]) -> None:
    """Raise for the first sound batch that begins at or below the ``highest`` offset of sound ones before it."""
    wrong = (table["verdict"] == Verdict.OK) & (table["base_offset"] <= highest[: len(table)])
    for index in np.flatnonzero(wrong):
        raise _out_of_order(table, int(index), highest)


def _out_of_order(table: BatchTable, index: int, highest: npt.NDArray[np.int64]) -> CorruptBatchError:
    offset, position = int(table["base_offset"][index]), int(table["position"][index])
    return CorruptBatchError(f"offset {offset} after {highest[index]}", position=position, offset=offset)


def _damage(
    data: bytes, table: BatchTable, index: int, highest: npt.NDArray[np.int64], position: int, wanted: Selection
) -> CorruptError:
    if table["verdict"][index] == Verdict.OK:
        return _out_of_order(table, index, highest)
    error = plain_error(data, table[index], base=position, limit=wanted.limit)
    if isinstance(error, UnsupportedFormatError):
        raise error
    return error


def _selected(table: BatchTable, wanted: Selection, leave_out: BatchExclusion) -> npt.NDArray[np.bool_]:
    """The batches that may have wanted records. The offset of a legacy message is the last one inside."""
    new = table["magic"] == 2
    selected: npt.NDArray[np.bool_] = last_offsets(table) >= wanted.low
    selected &= ~new | (table["base_offset"] < wanted.high)
    if wanted.times is not None:
        selected &= ~new | (table["max_timestamp"] >= wanted.times.first)
    control = new & (table["attributes"] & CONTROL_BIT != 0)
    if not leave_out.include_control:
        selected &= ~control
    if leave_out.aborted:
        transactional = new & ~control & (table["attributes"] & TRANSACTIONAL_BIT != 0)
        selected &= ~(transactional & _aborted(table, leave_out.aborted))
    return selected


def _aborted(table: BatchTable, transactions: Sequence[AbortedTxn]) -> npt.NDArray[np.bool_]:
    """The batches within an aborted transaction of their producer."""
    found = np.zeros(len(table), np.bool_)
    if not len(table):
        return found
    first, last = int(table["base_offset"][0]), int(table["base_offset"][-1])
    for txn in transactions:
        if txn.last_offset >= first and txn.first_offset <= last:
            within = (table["base_offset"] >= txn.first_offset) & (table["base_offset"] <= txn.last_offset)
            found |= within & (table["producer_id"] == txn.producer_id)
    return found
