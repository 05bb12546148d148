"""What makes the imports of the broker quick. To be called before `kio` is imported for the first time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final, cast

_HIDDEN: Final = "hypothesis"


def hide_hypothesis() -> bool:
    """kio's types describe themselves to hypothesis where it is installed, which takes longer than all else: let it
    not be found, unless it is loaded already. Whether it was hidden by this call."""
    modules = cast(dict[str, ModuleType | None], sys.modules)
    if _HIDDEN in modules:
        return False
    modules[_HIDDEN] = None
    return True


@contextmanager
def without_hypothesis() -> Iterator[None]:
    """Hide it for a while, in a process that is not ours: whoever loads it later has it."""
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
