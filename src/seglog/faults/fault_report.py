"""The state of a fault, and the requests that it has hit."""

from __future__ import annotations

from typing import NamedTuple

from seglog.faults.fault import Fault


class MetRequest(NamedTuple):
    """A request that met a fault."""

    api: str
    version: int
    client_id: str
    connection: int
    correlation_id: int


class FaultReport(NamedTuple):
    """``seen`` requests matched, ``fired`` of them met the fault; ``met`` has the last of these. ``problem`` says why
    the fault could not be shown to a request."""

    fault_id: int
    fault: Fault
    seen: int
    fired: int
    met: tuple[MetRequest, ...]
    problem: str | None
