"""Brokers and clusters for tests, with faults on demand.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from seglog.core.error_codes import ErrorCode
    from seglog.faults.fault import Fault, FaultError, FaultReport, MetRequest, Request
    from seglog.faults.replay import Difference, replay
    from seglog.faults.topic_fixture import TopicFixture, TopicRecord
    from seglog.testing.broker import Broker, BrokerClock
    from seglog.testing.cluster import Cluster
    from seglog.testing.injected_fault import BrokerError, BrokerFaults, InjectedFault

__all__ = [
    "Broker",
    "BrokerClock",
    "BrokerError",
    "BrokerFaults",
    "Cluster",
    "Difference",
    "ErrorCode",
    "Fault",
    "FaultError",
    "FaultReport",
    "InjectedFault",
    "MetRequest",
    "Request",
    "TopicFixture",
    "TopicRecord",
    "replay",
]

_HOMES: Final = {
    "Broker": "testing.broker",
    "BrokerClock": "testing.broker",
    "BrokerError": "testing.injected_fault",
    "BrokerFaults": "testing.injected_fault",
    "Cluster": "testing.cluster",
    "Difference": "faults.replay",
    "ErrorCode": "core.error_codes",
    "Fault": "faults.fault",
    "FaultError": "faults.fault",
    "FaultReport": "faults.fault",
    "InjectedFault": "testing.injected_fault",
    "MetRequest": "faults.fault",
    "Request": "faults.fault",
    "TopicFixture": "faults.topic_fixture",
    "TopicRecord": "faults.topic_fixture",
    "replay": "faults.replay",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"seglog.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
