from collections.abc import Callable
from typing import Any

class AsyncResult:
    value: Any
    @property
    def exception(self) -> BaseException | None: ...
    def rawlink(self, callback: Callable[[AsyncResult], object]) -> None: ...
