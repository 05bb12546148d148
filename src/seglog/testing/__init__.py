"""Parts for tests, ours and users': a broker; a clock moved by hand; disks that forget, or stop at the n-th change.

Names are imported when they are first used: a broker starts without the disks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from seglog.testing.broker import Broker
    from seglog.testing.broker_error import BrokerError
    from seglog.testing.clock import ManualClock
    from seglog.testing.crash_fs import Call, CrashFs, SimulatedCrash
    from seglog.testing.memory_fs import MemoryFs

__all__ = ["Broker", "BrokerError", "Call", "CrashFs", "ManualClock", "MemoryFs", "SimulatedCrash"]

_HOMES: Final = {
    "Broker": "broker",
    "BrokerError": "broker_error",
    "Call": "crash_fs",
    "CrashFs": "crash_fs",
    "ManualClock": "clock",
    "MemoryFs": "memory_fs",
    "SimulatedCrash": "crash_fs",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
