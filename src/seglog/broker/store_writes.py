"""Writes to the metadata store for a client: its error while the store is away, and the outcome of a write whose
response was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from seglog.broker.requests import ApiError
from seglog.cluster.generation import commit_raised
from seglog.cluster.model import RAISED
from seglog.cluster.store import (
    MAX_COMMIT_BYTES,
    MISSING,
    Change,
    CommitConflictError,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    StoreClosedError,
    StoreFailedError,
    UnknownOutcomeError,
    VersionChangedError,
    VersionedValue,
    size_of,
)
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError

T = TypeVar("T")


def _try_again(error: Exception) -> ApiError:
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"The metadata store cannot be reached: {error}")


async def read(answer: Awaitable[T]) -> T:
    """The store's answer. `ApiError` that clients retry if the store fails."""
    try:
        return await answer
    except (StoreFailedError, StoreClosedError) as error:
        raise _try_again(error) from error


async def write(store: MetadataStore, name: str, value: bytes, version: int) -> int:
    """Compare-and-set of one value; returns its version. `MISSING` creates it. No other write may make the same value.
    The generation of the store rises with it.

    `NameExistsError`, `NoSuchNameError`, `VersionChangedError`; `ApiError` that clients retry if the store fails.
    """
    (outcome,) = (await write_each(store, {name: [Change(name, value, version)]})).values()
    if isinstance(outcome, SeglogError):
        raise outcome
    return outcome


async def delete(store: MetadataStore, name: str, version: int) -> None:
    """As `write`. If the value is gone after a lost response, this write removed it."""
    (outcome,) = (await write_each(store, {name: [Change(name, None, version)]})).values()
    if isinstance(outcome, SeglogError):
        raise outcome


async def write_each(
    store: MetadataStore, changes: Mapping[str, Sequence[Change]], *, fence: Change | None = None
) -> Mapping[str, int | SeglogError]:
    """As `write` for many values, in as few commits as possible; returns the version or the error of each.

    ``changes`` has, for each name, the change of its value and then those that belong to it. ``fence`` is a change that
    must precede the others. It succeeds once: what does not fit into that commit has a `VersionChangedError`.
    """
    if not changes:
        return {}
    steps = [*([] if fence is None else [fence]), *chain.from_iterable(changes.values())]
    if len(changes) > 1 and sum(map(size_of, (RAISED, *steps))) > MAX_COMMIT_BYTES:
        return await _in_halves(store, changes, fence)
    try:
        versions = await commit_raised(store, steps)
    except UnknownOutcomeError as error:
        return await _outcomes(store, changes, error)
    except (StoreFailedError, StoreClosedError) as error:
        return dict.fromkeys(changes, _try_again(error))
    except CommitConflictError as error:
        return await _after_conflict(store, changes, fence, error)
    except SeglogError as error:  # of one of the topics: find out of which
        if len(changes) == 1:
            return dict.fromkeys(changes, error)
        return await _in_halves(store, changes, fence)
    written = dict(zip([step.name for step in steps], versions, strict=True))
    return {name: written[name] for name in changes}


async def _after_conflict(
    store: MetadataStore, changes: Mapping[str, Sequence[Change]], fence: Change | None, error: CommitConflictError
) -> Mapping[str, int | SeglogError]:
    try:
        found = await read(store.get_many(list(changes)))
    except ApiError as failed:
        return dict.fromkeys(changes, failed)
    errors: dict[str, SeglogError] = {}
    for name, (first, *_) in changes.items():
        there = found.get(name)
        if (MISSING if there is None else there.version) != first.version:
            errors[name] = _conflict(name, there, first)
    rest = {name: steps for name, steps in changes.items() if name not in errors}
    if fence is not None:
        return {**errors, **dict.fromkeys(rest, VersionChangedError(fence.name))}
    if len(rest) == len(changes):  # a change came and went, or one that belongs to a value does not fit
        return dict.fromkeys(changes, error) if len(rest) == 1 else await _in_halves(store, changes, None)
    return {**errors, **await write_each(store, rest)}


async def _in_halves(
    store: MetadataStore, changes: Mapping[str, Sequence[Change]], fence: Change | None
) -> Mapping[str, int | SeglogError]:
    names = list(changes)
    half = len(names) // 2
    parts = ({name: changes[name] for name in some} for some in (names[:half], names[half:]))
    return {name: outcome for part in parts for name, outcome in (await write_each(store, part, fence=fence)).items()}


def _conflict(name: str, there: VersionedValue | None, wanted: Change) -> CommitConflictError:
    if there is None:
        return NoSuchNameError(name)
    return NameExistsError(name) if wanted.version == MISSING else VersionChangedError(name)


async def _outcomes(
    store: MetadataStore, changes: Mapping[str, Sequence[Change]], error: UnknownOutcomeError
) -> Mapping[str, int | SeglogError]:
    """The outcomes of a commit whose response was lost."""
    try:
        found = await read(store.get_many(list(changes)))
    except ApiError as failed:
        return dict.fromkeys(changes, failed)
    outcomes: dict[str, int | SeglogError] = {}
    for name, (first, *_) in changes.items():
        there = found.get(name)
        version = MISSING if there is None else there.version
        if there is None if first.value is None else there is not None and there.value == first.value:
            outcomes[name] = version
        else:
            outcomes[name] = _try_again(error) if version == first.version else _conflict(name, there, first)
    return outcomes
