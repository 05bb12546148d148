"""Arrow's own memory, for arrays whose values numpy and compiled loops write.

The last reference to a buffer over Python's memory (`pyarrow.py_buffer`) takes the interpreter's lock. In a thread of
Arrow, DuckDB or Polars that can happen while the interpreter ends, which aborts the process. These buffers can be
dropped by any thread at any time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def allocate(size: int, dtype: npt.DTypeLike) -> tuple[npt.NDArray[Any], pa.Buffer]:
    """A buffer of ``size`` elements, and the array through which it is filled. It begins with any values."""
    # Arrow's default pool keeps what threads have freed: a scan would need 45 MB more.
    buffer = pa.allocate_buffer(size * np.dtype(dtype).itemsize, memory_pool=pa.system_memory_pool())
    return np.frombuffer(memoryview(buffer), dtype, size) if size else np.empty(0, dtype), buffer


def copy(values: npt.NDArray[Any]) -> pa.Buffer:
    """A buffer with these values, in C order."""
    array, buffer = allocate(values.size, values.dtype)
    array.reshape(values.shape)[...] = values
    return buffer
