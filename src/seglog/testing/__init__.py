"""Parts for tests, ours and users': a broker with faults on demand; a clock moved by hand; disks that forget, or stop
at the n-th change.

Names are imported when they are first used: a broker starts without the disks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from seglog.core.error_codes import ErrorCode
    from seglog.faults.fault import Fault, FaultError, Request
    from seglog.faults.fault_report import FaultReport, MetRequest
    from seglog.faults.replay import Difference, replay
    from seglog.faults.topic_fixture import TopicFixture, TopicRecord
    from seglog.testing.broker import Broker
    from seglog.testing.broker_clock import BrokerClock
    from seglog.testing.broker_error import BrokerError
    from seglog.testing.clock import ManualClock
    from seglog.testing.cluster import Cluster
    from seglog.testing.crash_fs import Call, CrashFs, SimulatedCrash
    from seglog.testing.injected_fault import BrokerFaults, InjectedFault
    from seglog.testing.memory_fs import MemoryFs

__all__ = [
    "Broker",
    "BrokerClock",
    "BrokerError",
    "BrokerFaults",
    "Call",
    "Cluster",
    "CrashFs",
    "Difference",
    "ErrorCode",
    "Fault",
    "FaultError",
    "FaultReport",
    "InjectedFault",
    "ManualClock",
    "MemoryFs",
    "MetRequest",
    "Request",
    "SimulatedCrash",
    "TopicFixture",
    "TopicRecord",
    "replay",
]

_HOMES: Final = {
    "Broker": "testing.broker",
    "BrokerClock": "testing.broker_clock",
    "BrokerError": "testing.broker_error",
    "BrokerFaults": "testing.injected_fault",
    "Call": "testing.crash_fs",
    "Cluster": "testing.cluster",
    "CrashFs": "testing.crash_fs",
    "Difference": "faults.replay",
    "ErrorCode": "core.error_codes",
    "Fault": "faults.fault",
    "FaultError": "faults.fault",
    "FaultReport": "faults.fault_report",
    "InjectedFault": "testing.injected_fault",
    "ManualClock": "testing.clock",
    "MemoryFs": "testing.memory_fs",
    "MetRequest": "faults.fault_report",
    "Request": "faults.fault",
    "SimulatedCrash": "testing.crash_fs",
    "TopicFixture": "faults.topic_fixture",
    "TopicRecord": "faults.topic_fixture",
    "replay": "faults.replay",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"seglog.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
