"""What a run makes of the log's keys and values: bytes, or columns with types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock

import pyarrow as pa

from seglog.core.fs import OsFs
from seglog.spark.options.read_options import ReadOptions
from seglog.table.pinned_formats import PinnedFormats, columns_of, pin
from seglog.values.batch_decoder import BatchDecoder
from seglog.values.reader_schema import ReadFormats, resolve_formats


class RecordDecoding:
    """Decodes with one schema, which was chosen when the run began. Several threads may use it.

    ``columns`` are those of decoded records; ``pinned`` says how they are decoded, None if they are bytes.
    """

    def __init__(self, chosen: ReadFormats | None, pinned: PinnedFormats | None, *, permissive: bool) -> None:
        self._chosen = chosen
        self._permissive = permissive
        self._lock = Lock()
        self._undecodable = 0
        self.pinned = pinned
        self.columns = columns_of(chosen, permissive=permissive)

    @classmethod
    def choose(cls, given: Mapping[str, str], options: ReadOptions, topic: str) -> RecordDecoding:
        """By the options that a run was ``given``, and the registry now. Raises what `resolve_formats` raises."""
        if not options.formats.columns:
            return cls(None, None, permissive=False)
        chosen = resolve_formats(options.formats, lambda: {topic}, OsFs())
        pinned = pin(given, chosen, permissive=options.permissive)
        return cls(chosen, pinned, permissive=options.permissive)

    @property
    def undecodable(self) -> int:
        """How many keys and values could not be decoded so far."""
        return self._undecodable

    def decode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with the source's columns, as batches with ``columns``. `UndecodableValueError` unless permissive."""
        if self._chosen is None:
            yield from batches
            return
        decoder = BatchDecoder(self._chosen, permissive=self._permissive)
        read = decoder.input_columns(self.columns.names)
        yield from decoder.decode_all((one.select(read) for one in batches), self.columns.names)
        with self._lock:
            self._undecodable += decoder.undecodable
