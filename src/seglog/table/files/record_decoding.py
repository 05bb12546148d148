"""The keys and values of a run: bytes, or columns with types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from seglog.core.fs import OsFs
from seglog.sources.options.read_options import ReadOptions
from seglog.table.columns.pinned_formats import PinnedFormats, columns_of, pin
from seglog.table.files.record_times import RecordTimes
from seglog.values.batch_decoder import BatchDecoder
from seglog.values.reader_schema import ReadFormats, choose_formats


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDecoding:
    """How the records of a run are decoded: with one schema, which was chosen when the run began.

    ``columns`` are those of decoded records; ``pinned`` says how they are decoded, None if they are bytes and no run is
    permissive.
    """

    chosen: ReadFormats | None
    pinned: PinnedFormats | None
    permissive: bool
    columns: pa.Schema

    @classmethod
    def choose(cls, given: Mapping[str, str], options: ReadOptions, topic: str) -> RecordDecoding:
        """By the options that a run was ``given``, and the registry now. Raises what `choose_formats` raises."""
        permissive, chosen = options.permissive, choose_formats(options.formats, lambda: {topic}, OsFs())
        if chosen is not None:
            pinned: PinnedFormats | None = pin(given, chosen, permissive=permissive)
        else:
            pinned = PinnedFormats(options={}, schemas={}, permissive=True) if permissive else None
        columns = columns_of(chosen, permissive=permissive)
        return cls(chosen=chosen, pinned=pinned, permissive=permissive, columns=columns)

    def decoder(self) -> RecordDecoder:
        """A decoder for one task."""
        return RecordDecoder(self)


class RecordDecoder:
    """Decodes the records of one task, for one thread, and counts those that it cannot."""

    def __init__(self, decoding: RecordDecoding) -> None:
        self._columns = decoding.columns.names
        self._times = RecordTimes(null_timestamps=decoding.permissive)
        self._values = None
        if decoding.chosen is not None:
            self._values = BatchDecoder(decoding.chosen, permissive=decoding.permissive)

    @property
    def undecodable(self) -> int:
        """How many keys and values could not be decoded so far."""
        return 0 if self._values is None else self._values.undecodable

    @property
    def null_timestamps(self) -> int:
        """How many timestamps were out of range, and so are null, so far."""
        return self._times.nulls

    def decode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with the source's columns, as batches with those of the table.

        `UndecodableValueError` and `TimestampRangeError` unless permissive.
        """
        checked = map(self._times.checked, batches)
        if self._values is None:
            yield from checked
            return
        read = self._values.input_columns(self._columns)
        yield from self._values.decode_all((one.select(read) for one in checked), self._columns)
