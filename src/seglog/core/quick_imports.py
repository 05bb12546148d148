"""Makes the broker's imports quick. Call it before `kio` is imported for the first time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final, cast

_HIDDEN: Final = "hypothesis"


def hide_hypothesis() -> bool:
    """kio's types register with hypothesis if it is installed, which takes longer than all other imports: hide it,
    unless it is loaded already. Returns whether this call hid it."""
    modules = cast(dict[str, ModuleType | None], sys.modules)
    if _HIDDEN in modules:
        return False
    modules[_HIDDEN] = None
    return True


@contextmanager
def without_hypothesis() -> Iterator[None]:
    """Hide hypothesis for a while, in a process that is not ours: a later import finds it."""
    is_hidden = hide_hypothesis()
    collects = gc.isenabled()
    gc.disable()  # of modules that are loaded nothing is garbage; that takes a third of the time otherwise
    try:
        yield
    finally:
        if collects:
            gc.enable()
        if is_hidden and cast(dict[str, ModuleType | None], sys.modules).get(_HIDDEN, sys) is None:
            del sys.modules[_HIDDEN]
