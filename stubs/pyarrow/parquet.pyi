"""The part of pyarrow.parquet that seglog uses."""

from collections.abc import Callable
from typing import Any

from pyarrow import Schema, Table

class ParquetWriter:
    def __init__(
        self,
        where: Any,
        schema: Schema,
        *,
        compression: str = ...,
        use_dictionary: list[str] = ...,
        column_encoding: dict[str, str] = ...,
        write_page_index: bool = ...,
        store_schema: bool = ...,
        bloom_filter_options: dict[str, dict[str, float]] = ...,
    ) -> None: ...
    def write_table(self, table: Table, row_group_size: int | None = ...) -> None: ...
    def close(self) -> None: ...

class FileMetaData:
    @property
    def num_rows(self) -> int: ...
    @property
    def num_row_groups(self) -> int: ...
    def row_group(self, i: int) -> RowGroupMetaData: ...

class ColumnChunkMetaData:
    @property
    def encodings(self) -> tuple[str, ...]: ...
    @property
    def bloom_filter_length(self) -> int | None: ...

class RowGroupMetaData:
    def column(self, i: int) -> ColumnChunkMetaData: ...
    @property
    def total_byte_size(self) -> int: ...

def write_table(table: Table, where: Any) -> None: ...
def read_schema(where: Any) -> Schema: ...
def read_metadata(where: Any) -> FileMetaData: ...
def read_table(source: Any, columns: list[str] | None = ...) -> Table: ...

ParquetFile: Callable[..., Any]
