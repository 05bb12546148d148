"""A column of Avro values as an Arrow array of the reader's type."""

from __future__ import annotations

import numpy as np

from seglog.records.column_encoding import ByteColumn
from seglog.records.intrinsics import I64
from seglog.values.avro.kernels import read_values, reason_of
from seglog.values.avro.layout import Cells, Layout
from seglog.values.avro.program import compile_program
from seglog.values.avro.schema import Schema, parse_schema
from seglog.values.schemas import DecodedColumn


class AvroDecoder:
    """Reads values of one writer's schema as those of a reader's."""

    def __init__(self, writer: Schema, reader: Schema, layout: Layout) -> None:
        """Raises `SchemaError` if the schemas do not fit; ``layout`` is the reader's."""
        self._layout = layout
        self._program = compile_program(writer, reader, layout)

    def decode(self, column: ByteColumn) -> DecodedColumn:
        """Values that cannot be read are null, and have a reason."""
        program, layout = self._program, self._layout
        data, code = column.data, program.code
        if program.constants:
            code = code.copy()
            code[program.text_constants, 2] += len(data)
            data = np.concatenate((data, np.frombuffer(program.constants, np.uint8)))
            data.setflags(write=False)  # the loop is compiled for read-only bytes
        rows = column.spans.shape[1]
        faults: I64 = np.zeros(rows, np.int64)
        counts: I64 = np.zeros(layout.space_count, np.int64)
        nowhere: I64 = np.zeros(0, np.int64)
        fixed = (data, column.spans, code, program.table, program.null_code, program.depth)
        read_values(*fixed, counts, nowhere, nowhere, faults)
        counts[0] = rows
        sizes = counts[layout.spaces]
        ends: I64 = np.cumsum(sizes)
        starts = ends - sizes
        cells: I64 = np.empty(int(ends[-1]), np.int64)
        read_values(*fixed, np.zeros_like(counts), starts.copy(), cells, faults)
        array = Cells(data, cells, starts, layout.spaces, counts).array(layout.root, rows)
        bad = np.flatnonzero(faults)
        return DecodedColumn(array, {int(row): reason_of(int(faults[row]), program.reasons) for row in bad})


def warm_decoder() -> None:
    """Compile the loop."""
    schema = parse_schema('"string"')
    spans: I64 = np.array([[0], [2]], np.int64)
    AvroDecoder(schema, schema, Layout(schema)).decode(ByteColumn(np.frombuffer(b"\2a", np.uint8), spans))
