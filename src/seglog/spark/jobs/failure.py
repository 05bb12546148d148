"""What a failed Spark job comes to for people: the error of ours inside of it, or Spark's own first line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from seglog.core.errors import SeglogError

_OURS: Final = re.compile(r"(seglog(?:\.\w+)+)\.(\w+): (.*)")
_PYTHONS: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.*)$", re.MULTILINE)


class JobFailedError(SeglogError):
    """A Spark job failed for a reason that is not one of ours: a worker that died, no memory, no such master."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors of Spark that are raised inside come out as errors of ours, with the original as their cause.

    An error of ours that a worker raised keeps its class and its words, which name the file and the position.
    """
    try:
        yield
    except (SeglogError, OSError):
        raise
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise explain(str(error)) from error


def explain(text: str) -> SeglogError:
    """Of what Spark prints about a failed job: a Java error with the traceback of a Python worker in it.

    >>> explain("Job aborted\\nseglog.core.errors.CorruptBatchError: a.log, position 7: torn\\n\\n\\tat java...")
    CorruptBatchError('a.log, position 7: torn')
    """
    if ours := _OURS.findall(text):
        module, name, reason = ours[-1]
        kind = getattr(import_module(module), name, SeglogError)
        found: SeglogError = kind(reason) if issubclass(kind, SeglogError) else SeglogError(f"{name}: {reason}")
        return found
    if pythons := _PYTHONS.findall(text):
        return JobFailedError(": ".join(pythons[-1]))
    return JobFailedError(next((line for line in text.splitlines() if line.strip()), "the job failed"))


def _is_sparks(error: Exception) -> bool:
    return type(error).__module__.split(".", maxsplit=1)[0] in ("pyspark", "py4j")
