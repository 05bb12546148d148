"""pyarrow.compute, of which seglog uses a little here and there."""

from typing import Any

def __getattr__(name: str) -> Any: ...
