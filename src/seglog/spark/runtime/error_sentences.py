"""Errors of the data source as its user reads them: the sentence alone, without frames of our code.

Spark makes the traceback of an exception in a Python worker the message of the query's error, so the sentence that
tells the user which option to change would stand below twenty lines of frames. Classes that Spark calls inherit from
`ErrorSentences`. In a worker, an error that names its cause then leaves them with its sentence only; its traceback goes
to the logger ``seglog.spark`` at DEBUG. Any other exception is a fault of the code and keeps its frames.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from seglog.core.errors import SeglogError

_log: Final = logging.getLogger("seglog.spark")

_INTERFACES: Final = (
    DataSource,
    DataSourceReader,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamArrowWriter,
    SupportsTriggerAvailableNow,
)
ENTRIES: Final = frozenset(
    name for one in _INTERFACES for name, _ in inspect.getmembers(one, inspect.isfunction) if not name.startswith("_")
)
"""The methods that Spark calls."""
_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""Spark's own switch, which a worker reads when it reports an exception (``pyspark.util.handle_worker_exception``)."""
_DEFERRED: Final = "streamReader"


class ErrorSentences:
    """A class whose methods in `ENTRIES`, and those of its subclasses, raise errors as sentences."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name in ENTRIES & cls.__dict__.keys():
            if inspect.isfunction(method := cls.__dict__[name]):
                setattr(cls, name, _later(method) if name == _DEFERRED else _as_sentence(method))


def _as_sentence(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with _sentences():
            return method(*arguments, **named)

    @wraps(method)
    def iterate(*arguments: Any, **named: Any) -> Iterator[Any]:
        with _sentences():
            yield from method(*arguments, **named)

    return iterate if inspect.isgeneratorfunction(method) else call


def _later(method: Callable[..., Any]) -> Callable[..., Any]:
    """Spark's runner of streams hides an exception of ``streamReader`` behind an ``UnboundLocalError`` of its own: it
    stops the reader that it did not get. So a reader is returned that raises the error when it is first asked."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except Exception as error:
            if not _is_plain(error) or not _in_worker():
                raise
            return _FailedStreamReader(error)

    return call


@contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not _is_plain(error) or not _in_worker():
            raise
        _log.debug("%s", error, exc_info=error)
        os.environ[_HIDE] = "1"  # the worker reports this exception and exits
        error.__cause__ = error.__context__ = None
        raise error.with_traceback(None) from None


def _is_plain(error: Exception) -> bool:
    """Whether the text of an error says it all: it names option, file, topic or broker."""
    return isinstance(error, SeglogError) or (isinstance(error, OSError) and error.filename is not None)


def _in_worker() -> bool:
    """Whether this is a process that Spark has started to run Python code. Others keep their tracebacks."""
    specification = getattr(sys.modules.get("__main__"), "__spec__", None)
    return specification is not None and specification.name.startswith("pyspark.")


class _FailedStreamReader(ErrorSentences, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises ``error`` from each method that Spark calls first."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, *_: object) -> dict[str, Any]:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def partitions(self, *_: object) -> list[InputPartition]:
        raise self._error

    def read(self, *_: object) -> Iterator[Any]:
        raise self._error
