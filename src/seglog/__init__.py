"""Kafka's log in Python: open a log directory, append to it and read it; or scan its files, or any Kafka, as Arrow.

>>> import tempfile
>>> import seglog
>>> path = tempfile.mkdtemp()
>>> with seglog.open(path) as directory:
...     _ = directory.create_topic("flights", partitions=2, config={"retention.ms": "-1"})
...     log = directory.log("flights", 0)
...     done = log.append_records([seglog.NewRecord(b"EWR-IAH", key=b"N14228", timestamp=1357034400000)])
...     [record.value for record in log.records()]
[b'EWR-IAH']
>>> seglog.scan(path, columns=["key", "offset"]).read_all().to_pylist()
[{'key': b'N14228', 'offset': 0}]

Names are imported when they are first used, so that `import seglog` costs next to nothing. `scan` needs
``pip install 'seglog[fast]'``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if sys.platform == "win32":  # directories cannot be fsynced there, and open files not renamed
    raise ImportError("seglog runs on Linux and macOS, not on Windows: use it in WSL 2 or in a container")
if TYPE_CHECKING:
    from seglog.core.errors import SeglogError
    from seglog.records.compression import Codec
    from seglog.records.record import NewRecord, Record
    from seglog.sources.arrow_scan import Scan
    from seglog.sources.scan import scan
    from seglog.storage.directory.log_dir import LogDir
    from seglog.storage.log.log import Log
    from seglog.storage.log.reader import Isolation, RecordReader
    from seglog.storage.log.reads import UpTo

    open = LogDir.open

__version__ = "0.1.0"
__all__ = [
    "Codec",
    "Isolation",
    "Log",
    "LogDir",
    "NewRecord",
    "Record",
    "RecordReader",
    "Scan",
    "SeglogError",
    "UpTo",
    "__version__",
    "open",
    "scan",
]

_HOMES: Final = {
    "Codec": "seglog.records.compression",
    "Log": "seglog.storage.log.log",
    "LogDir": "seglog.storage.directory.log_dir",
    "Isolation": "seglog.storage.log.reader",
    "NewRecord": "seglog.records.record",
    "Record": "seglog.records.record",
    "RecordReader": "seglog.storage.log.reader",
    "Scan": "seglog.sources.arrow_scan",
    "SeglogError": "seglog.core.errors",
    "UpTo": "seglog.storage.log.reads",
    "scan": "seglog.sources.scan",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "open":
        return import_module("seglog.storage.directory.log_dir").LogDir.open
    if name in ("scan", "Scan"):
        from seglog.core.extras import require

        for module in ("numpy", "numba", "pyarrow"):
            require(module, "fast", purpose="seglog.scan")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
