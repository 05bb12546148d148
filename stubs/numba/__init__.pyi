from collections.abc import Callable
from typing import Any, TypeVar

from numba import types as types

_F = TypeVar("_F", bound=Callable[..., Any])

# What a compiled function takes and gives is what its Python source says; that it is a Dispatcher is of no use to us.
def njit(*, nogil: bool = ..., cache: bool = ...) -> Callable[[_F], _F]: ...
