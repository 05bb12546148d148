"""The metadata format of a cluster, and the formats that its brokers speak.

    format              the number of the format that brokers may write; 1 if missing: the first release wrote none
    speaks/<node id>    `Formats` of a registered broker, as JSON; created and deleted with its registration

A format defines what a broker must understand to take part: values in the store and requests between brokers. A field
that an older broker may ignore needs no new format. A broker joins only if it speaks the cluster's format. The format
rises only while every registered broker speaks the new one (`raise_format`), so a rolling upgrade first installs the
new release everywhere. The format never goes back.

The first release is an exception: it knows no formats, and rejects registrations with fields that it does not know. For
the upgrade all its brokers must be stopped (docs/replication.md, "Rolling upgrade").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.cluster.model import BROKERS
from seglog.cluster.store import (
    MISSING,
    Change,
    Check,
    CommitConflictError,
    CommitStep,
    MetadataStore,
    StoreError,
    VersionedValue,
)

FORMAT: Final = "format"
SPEAKS: Final = "speaks"
BROKER_EPOCHS: Final = "epochs/broker"
"""The number of registrations in the cluster, which is the epoch of the last one."""


class Formats(NamedTuple):
    """The lowest and the highest format that a broker speaks."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"formats {self.low} to {self.high}" if self.low != self.high else f"format {self.low}"


FIRST: Final = Formats(1, 1)
"""The format of the first release, which does not register it."""
OURS: Final = Formats(1, 2)


class FormatError(StoreError):
    """A broker and its cluster have no common format."""


def speaks_name(node_id: int) -> str:
    return f"{SPEAKS}/{node_id}"


def encode_formats(formats: Formats) -> bytes:
    return json.dumps(formats._asdict(), separators=(",", ":")).encode()


def decode_formats(name: str, value: VersionedValue | None) -> Formats:
    """`FormatError`.

    >>> decode_formats("speaks/1", VersionedValue(encode_formats(Formats(1, 3)), 0))
    Formats(low=1, high=3)
    """
    if value is None:
        return FIRST
    try:
        told = json.loads(value.value)
        return Formats(int(told["low"]), int(told["high"]))
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{name} in the metadata store cannot be read: {error!r}") from error


def format_of(found: VersionedValue | None) -> int:
    """Return the cluster's format. Raises `FormatError`."""
    if found is None:
        return FIRST.high
    if not found.value.isdigit():
        raise FormatError(f"{FORMAT} in the metadata store is {found.value[:20]!r}, not a number")
    return int(found.value)


def check_format(found: VersionedValue | None, ours: Formats = OURS) -> CommitStep:
    """Return the step of a registration's commit that keeps the cluster's format from changing. Raises `FormatError` if
    a broker that speaks ``ours`` cannot take part."""
    there = format_of(found)
    if not ours.low <= there <= ours.high:
        advice = "install a later seglog here" if there > ours.high else "raise the cluster's format first"
        raise FormatError(f"the cluster's metadata has format {there}, this broker speaks {ours}: {advice}")
    return Change(FORMAT, b"%d" % there, MISSING) if found is None else Check(FORMAT, found.version)


async def raise_format(store: MetadataStore, to: int) -> int:
    """Raise the format of a cluster; return the one from before. Raises `FormatError` if that would go back, or if a
    registered broker does not speak it."""
    while True:
        found = await store.get_many([FORMAT, BROKER_EPOCHS])
        before = format_of(found.get(FORMAT))
        if to < before:
            raise FormatError(f"the cluster's metadata has format {before}: it never goes back to {to}")
        _check_brokers(await store.load(BROKERS), await store.load(SPEAKS), to)
        if to == before:
            return before
        now, epochs = found.get(FORMAT), found.get(BROKER_EPOCHS)
        steps: list[CommitStep] = [Change(FORMAT, b"%d" % to, MISSING if now is None else now.version)]
        if epochs is not None:  # no broker may register in between
            steps.insert(0, Check(BROKER_EPOCHS, epochs.version))
        try:
            await store.commit(steps)
        except CommitConflictError:
            continue
        return before


def _check_brokers(registered: Mapping[str, VersionedValue], speaks: Mapping[str, VersionedValue], to: int) -> None:
    for name in sorted(registered):
        node = name.partition("/")[2]
        formats = decode_formats(speaks_name(int(node)), speaks.get(f"{SPEAKS}/{node}"))
        if not formats.low <= to <= formats.high:
            raise FormatError(f"broker {node} speaks {formats}, not {to}: upgrade and restart it first")
