"""Parts for tests, ours and users': a clock moved by hand, a disk that forgets, one that stops at the n-th change."""

from __future__ import annotations

from seglog.testing.clock import ManualClock
from seglog.testing.crash_fs import Call, CrashFs, SimulatedCrash
from seglog.testing.memory_fs import MemoryFs

__all__ = ["Call", "CrashFs", "ManualClock", "MemoryFs", "SimulatedCrash"]
