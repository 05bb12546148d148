"""Consumed records whose keys or values are Avro or Protobuf, as JSON texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from seglog.cli.wire.formats import ConsumedRecord
from seglog.core.extras import require
from seglog.core.fs import OsFs

if TYPE_CHECKING:
    import pyarrow as pa

TYPED_FORMATS: Final = ("avro", "protobuf")


class TypedRecords:
    """Replaces bytes by JSON. `UndecodableValueError` names the first record that cannot be decoded."""

    def __init__(self, options: Mapping[str, str], topics: Sequence[str]) -> None:
        """``options`` as in `seglog.values.value_options`. Raises what `resolve_formats` raises."""
        for module in ("numpy", "numba", "pyarrow"):
            require(module, "formats", purpose="--value-format avro or protobuf")
        from seglog.values.batch_decoder import BatchDecoder
        from seglog.values.reader_schema import resolve_formats
        from seglog.values.value_options import parse_value_options

        chosen = resolve_formats(parse_value_options(options), lambda: topics, OsFs())
        self._columns = [one.column.column for one in chosen.columns]
        self._decoder = BatchDecoder(chosen)

    def decode(self, records: Sequence[ConsumedRecord]) -> list[ConsumedRecord]:
        from seglog.values.json.format import write_json

        found = self._decoder.decode(_batch(records), self._columns)
        texts = {name: write_json(found.column(name)).to_pylist() for name in self._columns}
        keys, values = texts.get("key"), texts.get("value")
        return [
            record._replace(
                key=record.key if keys is None else keys[row], value=record.value if values is None else values[row]
            )
            for row, record in enumerate(records)
        ]


def _batch(records: Sequence[ConsumedRecord]) -> pa.RecordBatch:
    import pyarrow as pa

    from seglog.records.columns import HEADERS

    headers = [[{"key": name, "value": value} for name, value in record.headers] or None for record in records]
    arrays = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "topic": pa.array([record.topic for record in records], pa.string()),
        "partition": pa.array([record.partition for record in records], pa.int32()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "headers": pa.array(headers, HEADERS),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
