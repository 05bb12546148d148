"""Every error that a broker can raise has a code that was chosen for it: clients do not retry UNKNOWN_SERVER_ERROR."""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
from collections.abc import Iterator
from typing import Final

import pytest

import seglog
from seglog.broker.requests import FAILURES, ApiError, code_of
from seglog.core import errors
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.core.fs import NoSpaceError, NotRegularFileError

_OF_A_BROKER: Final = frozenset(
    {"core", "records", "protocol", "storage", "net", "cluster", "replication", "coordinators", "broker"}
)
_NO_CODE: Final = {
    "ApiError": "each has its own code",
    "CoordinatorError": "each has its own code",
    "AppendError": "only its subclasses are raised",
    "UndecodableValueError": "of typed values, which a broker does not decode",
    "MissingExtraError": "a broker needs no extra, except for the compaction of its child process",
    "UnexpectedAppendOffsetError": "of a follower: its fetcher handles it",
    "CutRefusedError": "of a follower: its fetcher handles it",
    "WorkerFailedError": "of the log cleaner, which handles it",
    "AssignorError": "Kafka answers UNKNOWN_SERVER_ERROR too if an assignor fails",
    "InvalidStateError": "of the metadata's readers, which log it and skip the value",
    "AdoptError": "of the socket of a directory's owner, where the text counts",
    "UnknownTableError": "of tables",
    "TableInUseError": "of tables",
    "CatalogError": "of tables",
    "PlanChangedError": "of fsck, which runs beside brokers",
    "RepairStoppedError": "of fsck, which runs beside brokers",
    "RequestFailedError": "of clients",
    "BrokerUnavailableError": "of clients",
}


def _subclasses(of: type[SeglogError]) -> Iterator[type[SeglogError]]:
    for one in of.__subclasses__():
        yield one
        yield from _subclasses(one)


def _of_a_broker() -> set[type[SeglogError]]:
    for package in sorted(_OF_A_BROKER):
        for module in pkgutil.walk_packages([os.path.join(seglog.__path__[0], package)], f"seglog.{package}."):
            if "kernels" not in module.name and "numba" not in module.name:
                importlib.import_module(module.name)
    return {one for one in _subclasses(SeglogError) if one.__module__.split(".")[1] in _OF_A_BROKER}


def test_every_error_of_a_broker_has_a_code_of_its_own() -> None:
    found = _of_a_broker()
    assert len(found) > 60
    without = {one.__name__ for one in found if one.code is ErrorCode.UNKNOWN_SERVER_ERROR}
    assert without == set(_NO_CODE)


def test_a_log_that_closes_is_asked_for_again() -> None:
    assert errors.LogClosedError.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert errors.LogClosedError.retriable


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, os.strerror(number)) for number in sorted(errno.errorcode)),
        NoSpaceError(errno.ENOSPC, "full"),
        NotRegularFileError("a directory"),
        TimeoutError("no answer"),
    ],
    ids=lambda error: f"{type(error).__name__} {error.errno}",
)
def test_an_error_of_the_system_is_a_storage_error(error: OSError) -> None:
    assert isinstance(error, FAILURES)
    assert code_of(error) is ErrorCode.KAFKA_STORAGE_ERROR


def test_the_code_of_one_item_is_its_own() -> None:
    assert code_of(ApiError(ErrorCode.POLICY_VIOLATION)) is ErrorCode.POLICY_VIOLATION
