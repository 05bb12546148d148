"""Record batches with binary keys and values in; the same batches with typed ones out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, Self

import pyarrow as pa

from seglog.core.errors import UndecodableValueError
from seglog.core.fs import Fs
from seglog.values.column_decoder import ColumnDecoder
from seglog.values.dead_letters import COPIED, DeadLetters
from seglog.values.reader_schema import ReadFormats
from seglog.values.registry import registry_of

_PLACE: Final = ("topic", "partition", "offset")
_log: Final = logging.getLogger("seglog.values")


def bytes_column(column: str) -> str:
    """The column with the bytes of values that could not be decoded.

    >>> bytes_column("value")
    'valueBytes'
    """
    return f"{column}Bytes"


class BatchDecoder:
    """Decodes the batches of one task, for one thread.

    If not ``permissive``, the first value that cannot be decoded raises `UndecodableValueError`. Else it is null, its
    bytes are in `bytes_column`, and it becomes one of the ``dead_letters``. `close` writes the last of those, and logs
    how many there were.
    """

    def __init__(
        self, formats: ReadFormats, *, permissive: bool = False, dead_letters: DeadLetters | None = None
    ) -> None:
        registry = None if formats.registry is None else registry_of(formats.registry)
        self._columns = [ColumnDecoder(one, registry) for one in formats.columns]
        self._permissive = permissive
        self._dead_letters = dead_letters
        self._bad = 0
        self._first = ""
        self._undecodable = 0

    @classmethod
    def opened(cls, formats: ReadFormats, fs: Fs, *, permissive: bool, dead_letters: str | None) -> Self:
        """One whose ``dead_letters`` go to a directory, if one is named."""
        letters = None if dead_letters is None else DeadLetters(fs, dead_letters)
        return cls(formats, permissive=permissive, dead_letters=letters)

    @property
    def undecodable(self) -> int:
        """How many keys and values could not be decoded so far."""
        return self._undecodable

    @property
    def extra_columns(self) -> list[str]:
        """The columns that `decode` can add."""
        return [bytes_column(one.name) for one in self._columns] if self._permissive else []

    def input_columns(self, wanted: Sequence[str]) -> list[str]:
        """The columns that `decode` needs, to return those that are wanted."""
        needed = [name for name in wanted if name not in self.extra_columns]
        for one in self._decoded(wanted):
            needed += [one.name, *_PLACE, *(["headers"] if one.needs_headers else [])]
        if self._dead_letters is not None and self._decoded(wanted):
            needed += COPIED
        return list(dict.fromkeys(needed))

    def _decoded(self, wanted: Sequence[str]) -> list[ColumnDecoder]:
        return [one for one in self._columns if one.name in wanted or bytes_column(one.name) in wanted]

    def decode(self, batch: pa.RecordBatch, wanted: Sequence[str]) -> pa.RecordBatch:
        """The columns that are wanted of a batch with `input_columns`, as binary columns."""
        typed: dict[str, pa.Array] = {}
        headers = batch.column("headers") if "headers" in batch.schema.names else None
        for one in self._decoded(wanted):
            raw = batch.column(one.name)
            found = one.decode(raw, headers)
            typed[one.name] = found.array
            if found.reasons:
                self._report(batch, one.name, found.reasons)
            if self._permissive:
                typed[bytes_column(one.name)] = _only(raw, found.reasons)
        arrays = [typed[name] if name in typed else batch.column(name) for name in wanted]
        return pa.RecordBatch.from_arrays(arrays, names=list(wanted))

    def _report(self, batch: pa.RecordBatch, column: str, reasons: dict[int, str]) -> None:
        row = min(reasons)
        topic, partition, offset = (batch.column(name)[row].as_py() for name in _PLACE)
        text = f"topic {topic}, partition {partition}, offset {offset}: the {column} cannot be decoded: {reasons[row]}"
        if not self._permissive:
            raise UndecodableValueError(text)
        self._first = self._first or text
        self._bad += len(reasons)
        self._undecodable += len(reasons)
        if self._dead_letters is not None:
            self._dead_letters.add(batch, column, reasons)

    def decode_all(self, batches: Iterator[pa.RecordBatch], wanted: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All batches of a task; then `close`."""
        for batch in batches:
            yield self.decode(batch, wanted)
        self.close()

    def close(self) -> None:
        if self._dead_letters is not None:
            self._dead_letters.close()
        if self._bad:
            _log.warning("seglog: %d keys and values could not be decoded; the first: %s", self._bad, self._first)
            self._bad, self._first = 0, ""


def _only(column: pa.Array, reasons: dict[int, str]) -> pa.Array:
    """The bytes of the rows with a reason; null elsewhere."""
    if not reasons:
        return pa.nulls(len(column), pa.binary())
    rows = [row if row in reasons else None for row in range(len(column))]
    return column.take(pa.array(rows, pa.int64()))
