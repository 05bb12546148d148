"""A column of bytes as a typed column, whatever schemas its values were written with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from seglog.records.column_encoding import ByteColumn, byte_column
from seglog.records.intrinsics import I64
from seglog.values.framing import Frames, WrittenWith, id_headers, unframe
from seglog.values.reader_schema import ReaderSchema, make_format
from seglog.values.registry import Registry, SchemaNotFoundError
from seglog.values.schemas import Decode, DecodedColumn, SchemaError
from seglog.values.value_options import HEADER


class ColumnDecoder:
    """Keeps a decoder for each schema that it has met. Not for several threads."""

    def __init__(self, reader: ReaderSchema, registry: Registry | None) -> None:
        self._reader = reader
        self._registry = registry
        self._format = make_format(reader)
        self._known: dict[WrittenWith, Decode | str] = {}

    @property
    def name(self) -> str:
        return self._reader.column.column

    @property
    def needs_headers(self) -> bool:
        return self._reader.column.framing == HEADER

    @property
    def type(self) -> pa.DataType:
        return self._format.type

    def decode(self, column: pa.Array, headers: pa.Array | None = None) -> DecodedColumn:
        """Values that cannot be decoded are null, with a reason. ``headers`` are those of the same records.

        Raises `RequestFailedError` if the registry does not answer: that is the fault of no value.
        """
        data = byte_column(self.name, column, len(column))
        ids: Mapping[int, bytes] | None = None
        if headers is not None and self.needs_headers:
            ids = id_headers(self.name, headers)
        frames = unframe(data, self._reader.column.framing, messages=self._format.message is not None, headers=ids)
        reasons = dict(frames.reasons)
        if len(frames.writers) == 1:
            return self._of_one(frames, data, reasons)
        return self._of_several(frames, data, reasons)

    def _of_one(self, frames: Frames, data: ByteColumn, reasons: dict[int, str]) -> DecodedColumn:
        decode = self._decoder(frames.writers[0])
        if isinstance(decode, str):
            reasons.update(dict.fromkeys(np.flatnonzero(frames.places == 0).tolist(), decode))
            return DecodedColumn(pa.nulls(len(frames.places), self.type), reasons)
        found = decode(ByteColumn(data.data, np.ascontiguousarray(frames.spans)))
        return DecodedColumn(found.array, reasons | found.reasons)

    def _of_several(self, frames: Frames, data: ByteColumn, reasons: dict[int, str]) -> DecodedColumn:
        """The rows of each schema are decoded together, and put back in order."""
        without = np.flatnonzero(frames.places == -1)
        arrays, places = [pa.nulls(len(without), self.type)], [without]
        for number, writer in enumerate(frames.writers):
            rows = np.flatnonzero(frames.places == number)
            decode = self._decoder(writer)
            if isinstance(decode, str):
                reasons.update(dict.fromkeys(rows.tolist(), decode))
                arrays.append(pa.nulls(len(rows), self.type))
            else:
                found = decode(ByteColumn(data.data, np.ascontiguousarray(frames.spans[:, rows])))
                reasons.update({int(rows[row]): reason for row, reason in found.reasons.items()})
                arrays.append(found.array)
            places.append(rows)
        order: I64 = np.argsort(np.concatenate(places), kind="stable")
        return DecodedColumn(pa.concat_arrays(arrays).take(pa.array(order)), reasons)

    def _decoder(self, writer: WrittenWith) -> Decode | str:
        """The decoder for values of a schema, or why there is none."""
        found = self._known.get(writer)
        if found is None:
            found = self._known[writer] = self._new_decoder(writer)
        return found

    def _new_decoder(self, writer: WrittenWith) -> Decode | str:
        try:
            if writer.schema is None or self._registry is None:
                return self._format.decoder(None, writer.message)
            return self._format.decoder(self._registry.schema(writer.schema), writer.message)
        except SchemaNotFoundError as error:
            return str(error)
        except SchemaError as error:
            return f"schema {writer.schema}: {error}" if writer.schema is not None else str(error)
