"""Parts for tests, ours and users': a broker; a clock moved by hand; disks that forget, or stop at the n-th change."""

from __future__ import annotations

from seglog.testing.broker import Broker, BrokerError
from seglog.testing.clock import ManualClock
from seglog.testing.crash_fs import Call, CrashFs, SimulatedCrash
from seglog.testing.memory_fs import MemoryFs

__all__ = ["Broker", "BrokerError", "Call", "CrashFs", "ManualClock", "MemoryFs", "SimulatedCrash"]
