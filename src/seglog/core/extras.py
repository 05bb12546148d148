"""Optional dependencies. They are imported where they are used; a missing one is named with its pip command."""

from __future__ import annotations

import importlib
from types import ModuleType

from seglog.core.errors import MissingExtraError


def require(module: str, extra: str, *, purpose: str) -> ModuleType:
    """Import ``module``, or raise `MissingExtraError` with the pip command for it.

    >>> require("no_such_module", "fast", purpose="reading logs as Arrow")
    Traceback (most recent call last):
        ...
    seglog.core.errors.MissingExtraError: reading logs as Arrow needs no_such_module: pip install 'seglog[fast]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".", maxsplit=1)[0]:
            raise
        raise MissingExtraError(f"{purpose} needs {module}: pip install 'seglog[{extra}]'") from error
