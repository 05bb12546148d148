"""A scan as a pyarrow Dataset, so that DuckDB pushes columns and filters into it.

DuckDB pushes only into pyarrow's own classes. `ScanDataset` is one, although it has no files: it answers `scanner`
itself, and so all that a dataset does by its scanner. pyarrow's datasets import pandas, and so does this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.dataset
from pyarrow import fs

from seglog.sources.arrow_scan import Scan
from seglog.sources.scan_columns import ScanColumns
from seglog.sources.scan_logs import ScannedLogs

_FORMAT: Final = pyarrow.dataset.IpcFileFormat()
_NO_FILE: Final = "a scan has no files: use its methods, such as scanner(), to_table() or dataset().reader()"


class ScanDataset(Scan, pyarrow.dataset.FileSystemDataset):
    """A `Scan` that is a pyarrow Dataset too."""

    def __init__(
        self,
        logs: ScannedLogs,
        columns: ScanColumns,
        *,
        threads: int,
        shows_progress: bool = False,
        schema: pa.Schema | None = None,
        filter_: Any = None,
    ) -> None:
        Scan.__init__(
            self, logs, columns, threads=threads, shows_progress=shows_progress, schema=schema, filter_=filter_
        )
        # Code of Arrow that does not ask `scanner` finds a file that does not exist, whose name says why.
        system = fs.LocalFileSystem()
        fragment = _FORMAT.make_fragment(_NO_FILE, system)
        pyarrow.dataset.FileSystemDataset.__init__(self, [fragment], self.schema, _FORMAT, system)

    def scanner(self, *given: Any, columns: Any = None, filter: Any = None, **options: Any) -> pyarrow.dataset.Scanner:
        """A scanner of these columns, of the records that pass ``filter``. Partitions and offsets that cannot pass are
        not read, and columns that nothing needs are not decoded. First may be the columns, as for a dataset, or the
        schema, as for a fragment."""
        if given and not isinstance(given[0], pa.Schema):
            columns = given[0]
        options = {name: value for name, value in options.items() if name in ("use_threads", "memory_pool")}
        if columns is None or (all(isinstance(name, str) for name in columns) and not isinstance(columns, dict)):
            reader = self.narrowed(columns, filter)
            return pyarrow.dataset.Scanner.from_batches(reader, batch_readahead=0, **options)
        reader = self.narrowed(None, filter)
        return pyarrow.dataset.Scanner.from_batches(reader, columns=columns, batch_readahead=0, **options)

    def get_fragments(self, filter: Any = None) -> Iterator[Any]:
        """The scan itself: it is one fragment."""
        yield self if filter is None else self.filter(filter)

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema, by the name that it has in a fragment."""
        return self.schema

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Not possible: name the columns when the scan is made."""
        raise TypeError("the schema of a scan cannot be replaced: give seglog.scan its columns")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a scan cannot be pickled: it has connections and files of this process")
