"""Writes to the metadata store for a client: its error while the store is away, and the outcome of a write whose
response was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TypeVar

from seglog.broker.requests import ApiError
from seglog.cluster.generation import commit_raised
from seglog.cluster.store import (
    MISSING,
    Change,
    MetadataStore,
    NameExistsError,
    NoSuchNameError,
    StoreClosedError,
    StoreFailedError,
    UnknownOutcomeError,
    VersionChangedError,
    VersionedValue,
)
from seglog.core.error_codes import ErrorCode

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
    try:
        return (await commit_raised(store, [Change(name, value, version)]))[0]
    except UnknownOutcomeError as error:
        return await _outcome(store, name, value, version, error)
    except (StoreFailedError, StoreClosedError) as error:
        raise _try_again(error) from error


async def _outcome(store: MetadataStore, name: str, value: bytes, version: int, error: UnknownOutcomeError) -> int:
    """The outcome of a `write` whose response was lost."""
    found = await read(store.get(name))
    if found is not None and found.value == value:
        return found.version
    if (MISSING if found is None else found.version) == version:
        raise _try_again(error) from error
    if found is None:
        raise NoSuchNameError(name) from error
    raise (NameExistsError if version == MISSING else VersionChangedError)(name) from error


async def create_in_turn(
    store: MetadataStore, name: str, value: bytes, last: str, before: VersionedValue | None
) -> int | None:
    """As `write` of a new value, in one commit with its name as the value at ``last``, which was ``before`` when the
    caller checked for collisions. None if ``last`` has changed: the caller must check again."""
    version = MISSING if before is None else before.version
    try:
        return (await commit_raised(store, [Change(last, name.encode(), version), Change(name, value, MISSING)]))[1]
    except (NameExistsError, VersionChangedError, NoSuchNameError) as error:
        if await read(store.get(name)) is None:
            return None
        raise NameExistsError(name) from error
    except UnknownOutcomeError as error:
        return await _outcome(store, name, value, MISSING, error)
    except (StoreFailedError, StoreClosedError) as error:
        raise _try_again(error) from error


async def delete(store: MetadataStore, name: str, version: int, tombstones: Mapping[str, bytes]) -> None:
    """As `write`: replaces the value by ``tombstones``. If the value is gone after a lost response, this write removed
    it."""
    left = [Change(tombstone, value, MISSING) for tombstone, value in tombstones.items()]
    try:
        await commit_raised(store, [Change(name, None, version), *left])
    except UnknownOutcomeError as error:
        found = await read(store.get(name))
        if found is None:
            return
        raise (_try_again(error) if found.version == version else VersionChangedError(name)) from error
    except (StoreFailedError, StoreClosedError) as error:
        raise _try_again(error) from error
