"""What a run makes of the log's keys and values: bytes, or columns with types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock

import pyarrow as pa

from seglog.core.fs import OsFs
from seglog.sources.options.read_options import ReadOptions
from seglog.table.pinned_formats import PinnedFormats, columns_of, pin
from seglog.table.record_times import RecordTimes
from seglog.values.batch_decoder import BatchDecoder
from seglog.values.reader_schema import ReadFormats, resolve_formats


class RecordDecoding:
    """Decodes with one schema, which was chosen when the run began. Several threads may use it.

    ``columns`` are those of decoded records; ``pinned`` says how they are decoded, None if they are bytes and no run is
    permissive.
    """

    def __init__(self, chosen: ReadFormats | None, pinned: PinnedFormats | None, *, permissive: bool) -> None:
        self._chosen = chosen
        self._permissive = permissive
        self._lock = Lock()
        self._undecodable = 0
        self._times = RecordTimes(null_timestamps=permissive)
        self.pinned = pinned
        self.columns = columns_of(chosen, permissive=permissive)

    @classmethod
    def choose(cls, given: Mapping[str, str], options: ReadOptions, topic: str) -> RecordDecoding:
        """By the options that a run was ``given``, and the registry now. Raises what `resolve_formats` raises."""
        if not options.formats.columns:
            pinned = PinnedFormats(options={}, schemas={}, permissive=True) if options.permissive else None
            return cls(None, pinned, permissive=options.permissive)
        chosen = resolve_formats(options.formats, lambda: {topic}, OsFs())
        pinned = pin(given, chosen, permissive=options.permissive)
        return cls(chosen, pinned, permissive=options.permissive)

    @property
    def undecodable(self) -> int:
        """How many keys and values could not be decoded so far."""
        return self._undecodable

    @property
    def null_timestamps(self) -> int:
        """How many timestamps were out of range, and so are null, so far."""
        return self._times.nulls

    def decode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with the source's columns, as batches with ``columns``.

        `UndecodableValueError` and `TimestampRangeError` unless permissive.
        """
        checked = map(self._times.checked, batches)
        if self._chosen is None:
            yield from checked
            return
        decoder = BatchDecoder(self._chosen, permissive=self._permissive)
        read = decoder.input_columns(self.columns.names)
        yield from decoder.decode_all((one.select(read) for one in checked), self.columns.names)
        with self._lock:
            self._undecodable += decoder.undecodable
