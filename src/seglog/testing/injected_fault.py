"""Faults that a test has given to its broker, and what has become of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypedDict

from seglog.core.errors import SeglogError
from seglog.faults.fault import Ending, Fault, FaultReport, MetRequest, Request


class BrokerError(SeglogError):
    """The broker is not in a state in which this can be done, or it has ended by itself."""


class FaultFields(TypedDict, total=False):
    """The fields of a `Fault` that all methods of a broker take."""

    topic: str
    partition: int
    group: str
    transactional_id: str
    client_id: str
    connection: int
    version: int
    where: Callable[[Request], bool]
    peers: bool
    nth: int
    times: int | None
    probability: float
    seed: int
    then: Ending
    applied: bool
    whole: bool


class _Control(Protocol):
    def __call__(self, verb: str, argument: Mapping[str, Any], /) -> Any: ...


class InjectedFault:
    """A fault in a broker."""

    def __init__(self, fault_id: int, fault: Fault, reports: Callable[[], Mapping[int, FaultReport]]) -> None:
        self.fault_id = fault_id
        self.fault = fault
        self._reports = reports

    @property
    def report(self) -> FaultReport:
        """How often it was met so far. `BrokerError` if the broker no longer has it."""
        try:
            return self._reports()[self.fault_id]
        except KeyError:
            raise BrokerError(f"the broker no longer has {self!r}") from None

    @property
    def fired(self) -> int:
        """How many requests have met the fault."""
        return self.report.fired

    @property
    def seen(self) -> int:
        """How many requests have matched while it counted."""
        return self.report.seen

    def assert_fired(self, times: int | None = None) -> None:
        """AssertionError if no request has met the fault, or not so many as ``times``."""
        report = self.report
        if report.problem is not None:
            raise AssertionError(f"{self!r} could not be shown: {report.problem}")
        if report.fired != times if times is not None else not report.fired:
            wanted = "" if times is None else f", not {times}"
            raise AssertionError(f"{self!r} was met by {report.fired} requests{wanted}; {report.seen} matched")

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in _given(self.fault))
        return f"<InjectedFault {self.fault_id}: {given}>"


class BrokerFaults:
    """All faults that a broker has. Iterate it."""

    def __init__(self, inject: Callable[[Sequence[Fault], bool], list[int]], control: _Control) -> None:
        self._inject = inject
        self._control = control
        self._injected: list[InjectedFault] = []

    def __iter__(self) -> Iterator[InjectedFault]:
        return iter(list(self._injected))

    def __len__(self) -> int:
        return len(self._injected)

    def inject(self, faults: Sequence[Fault], *, in_order: bool) -> list[InjectedFault]:
        """See `Broker.inject`."""
        ids = self._inject(faults, in_order)
        made = [InjectedFault(one, fault, self.reports) for one, fault in zip(ids, faults, strict=True)]
        self._injected += made
        return made

    def reports(self) -> dict[int, FaultReport]:
        """By id, as the broker has them now."""
        mine = {one.fault_id: one.fault for one in self._injected}
        found = self._control("reports", {})
        return {one["id"]: _report(one, mine[one["id"]]) for one in found if one["id"] in mine}

    def assert_all_fired(self) -> None:
        """AssertionError for the first fault that no request has met."""
        for one in self._injected:
            one.assert_fired()

    def remove(self, fault: InjectedFault) -> None:
        """`FaultError` if the broker does not have it. Requests that it holds lose their connections."""
        self._control("remove", {"id": fault.fault_id})
        self._injected.remove(fault)

    def clear(self) -> None:
        """Remove all."""
        self._control("clear", {})
        self.forget()

    def forget(self) -> None:
        """The broker has ended, and its faults with it."""
        self._injected.clear()


def _given(fault: Fault) -> Iterator[tuple[str, object]]:
    defaults = Fault(effect="refuse")
    for name in Fault.__dataclass_fields__:
        value = getattr(fault, name)
        if name == "effect" or value != getattr(defaults, name):
            yield name, value


def _report(document: Mapping[str, Any], fault: Fault) -> FaultReport:
    met = tuple(MetRequest(**one) for one in document["met"])
    return FaultReport(document["id"], fault, document["seen"], document["fired"], met, document["problem"])
