from collections.abc import Callable
from typing import Any

class Dispatcher:
    py_func: Callable[..., Any]
