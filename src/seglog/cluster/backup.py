"""Backups of the metadata store, and the changes that make an older store safe to continue with.

A backup is one JSON document, with a CRC over its values::

    {"form": 1, "cluster": "xtz…", "generation": 1234, "taken_ms": 17…, "crc": 305419896,
     "values": {"topics/web": [3, "{…}"], …}}

Each value has its version; one that is not UTF-8 has its bytes in base64, as a third item.

An older store must not be believed. Since then ISRs have shrunk, leaders were elected, and numbers were given out that
must not be given out again. So `distrusted` leaves every partition without a leader and without an ISR, with all its
replicas as candidates, and their evidence decides (`seglog.cluster.election`). Counters continue above everything that
can have been used.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from seglog.cluster.cluster_view import CONTROLLER
from seglog.cluster.controller import CONTROLLER_EPOCHS
from seglog.cluster.formats import BROKER_EPOCHS, SPEAKS
from seglog.cluster.membership import count
from seglog.cluster.model import (
    ANY_EPOCH,
    BROKERS,
    GENERATION,
    GENERATION_BASE,
    NO_LEADER,
    PARTITIONS,
    Member,
    PartitionState,
    decode_partition,
    encode,
    generation_of,
)
from seglog.cluster.store import ANY_VERSION, MISSING, Change, StoreError, VersionedValue

CLUSTER: Final = "cluster"
PRODUCER_IDS: Final = "producer-ids"
_FORM: Final = 1
_EPOCHS: Final = 1 << 20
"""The least by which counters rise when an older store is accepted."""
_EPOCHS_BEGIN_S: Final = 1_577_836_800
"""2020 in seconds: the leader epochs of an accepted store count from here, and have 31 bits."""
_PER_SECOND: Final = 20
"""Bits of a counter below the second of the wall clock: no broker gives out a million numbers per second."""
_GENERATIONS: Final = 32
"""Bits of a generation below the base: a version has 31."""


class Backup(NamedTuple):
    """All values of a store except those of sessions."""

    cluster_id: str
    generation: int
    taken_ms: int
    values: Mapping[str, VersionedValue]


class InvalidBackupError(StoreError):
    """The file is not a complete backup."""


def take_backup(values: Mapping[str, VersionedValue], taken_ms: int) -> Backup:
    """Return a backup without the values of sessions, which are over when it is needed. Raises `StoreError` if the
    store has no cluster."""
    if CLUSTER not in values:
        raise StoreError("this metadata store has no cluster")
    of_sessions = (f"{BROKERS}/", f"{SPEAKS}/")
    kept = {name: one for name, one in values.items() if name != CONTROLLER and not name.startswith(of_sessions)}
    return Backup(cluster_id_of(values), generation_of(values), taken_ms, kept)


def cluster_id_of(values: Mapping[str, VersionedValue]) -> str:
    return str(json.loads(values[CLUSTER].value)["cluster.id"])


def encode_backup(backup: Backup) -> bytes:
    values = {name: _told(value) for name, value in sorted(backup.values.items())}
    content = {
        "form": _FORM,
        "cluster": backup.cluster_id,
        "generation": backup.generation,
        "taken_ms": backup.taken_ms,
        "crc": _crc(values),
        "values": values,
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def decode_backup(data: bytes, file: str) -> Backup:
    """Decode a backup. Raises `InvalidBackupError`, which names the file."""
    try:
        content = json.loads(data)
        form = content["form"]
        values = content["values"]
        if form == _FORM and content["crc"] == _crc(values):
            found = {str(name): _value(told) for name, told in values.items()}
            return Backup(str(content["cluster"]), int(content["generation"]), int(content["taken_ms"]), found)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InvalidBackupError(f"{file} is not a backup of a metadata store: {error!r}") from error
    if form != _FORM:
        raise InvalidBackupError(f"{file} has form {form}: a later seglog wrote it")
    raise InvalidBackupError(f"{file} is damaged: its values do not match its CRC")


def _crc(values: object) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def _told(value: VersionedValue) -> list[object]:
    try:
        return [value.version, value.value.decode()]
    except UnicodeDecodeError:
        return [value.version, "", base64.b64encode(value.value).decode()]


def _value(told: list[object]) -> VersionedValue:
    version, text, *rest = told
    if not isinstance(version, int) or not isinstance(text, str):
        raise TypeError(f"not a value: {told!r:.80}")
    return VersionedValue(base64.b64decode(str(rest[0])) if rest else text.encode(), version)


# Continuing with an older store


def accepted(values: Mapping[str, VersionedValue], now_ms: int) -> Iterator[Change]:
    """Yield the changes that make an older store one to continue with. The last one is the generation that brokers
    accept.

    Raises `InvalidStateError` for a partition that a later seglog wrote.
    """
    for name, value in distrusted(values, now_ms).items():
        found = values.get(name)
        yield Change(name, value, MISSING if found is None else found.version)
    base = values.get(GENERATION_BASE)
    if GENERATION not in values:
        yield Change(GENERATION, b"0", MISSING)
    generation = max(generation_of(values), (now_ms // 1000) << _GENERATIONS)
    yield Change(GENERATION_BASE, b"%d" % generation, MISSING if base is None else ANY_VERSION)


def restored(backup: Backup, now_ms: int) -> Iterator[Change]:
    """Yield the changes that write the backup into an empty store. Brokers that have seen a later generation still
    refuse it."""
    values = {name: one.value for name, one in backup.values.items() if name not in (GENERATION, GENERATION_BASE)}
    values |= distrusted(backup.values, now_ms)
    values |= {GENERATION: b"0", GENERATION_BASE: b"%d" % max(backup.generation, 0)}
    cluster = values.pop(CLUSTER)
    for name, value in values.items():
        yield Change(name, value, MISSING)
    yield Change(CLUSTER, cluster, MISSING)


def distrusted(values: Mapping[str, VersionedValue], now_ms: int) -> dict[str, bytes]:
    """Return the values that must change because what this store says may be over."""
    found = counters(
        now_ms,
        broker_epoch=count(BROKER_EPOCHS, values.get(BROKER_EPOCHS)),
        controller_epoch=count(CONTROLLER_EPOCHS, values.get(CONTROLLER_EPOCHS)),
        producer_id=count(PRODUCER_IDS, values.get(PRODUCER_IDS)),
    )
    for name, value in values.items():
        if name.startswith(f"{PARTITIONS}/"):
            state = decode_partition(name, value.value)
            found[name] = encode(undecided(state, later_epoch(state.leader_epoch, now_ms)))
    return found


def later_epoch(leader_epoch: int, now_ms: int) -> int:
    """Return a leader epoch above all that began since a state with ``leader_epoch`` was copied, even if that copy was
    accepted before: a partition has fewer elections than there are seconds. If the clock is behind, the epoch rises by
    a million.

    >>> later_epoch(7, 1_700_000_000_000), later_epoch(7, 1_700_000_060_000), later_epoch(7, 0)
    (122163200, 122163260, 1048583)
    """
    second = now_ms // 1000 - _EPOCHS_BEGIN_S
    return second if second > leader_epoch else leader_epoch + _EPOCHS


def undecided(state: PartitionState, leader_epoch: int) -> PartitionState:
    """Return the state without a leader, with each replica as a candidate, so that their reports decide. Brokers to
    which the partition was moved since keep their logs as strays (`PartitionState.recreated_epoch`). The state is not
    new: the partition may have been written since."""
    asked = tuple(Member(node, ANY_EPOCH) for node in state.replicas)
    undecided = replace(state, leader=NO_LEADER, isr=(), elr=(), last_known=asked, is_new=False, evidence=(), left=())
    return replace(undecided, leader_epoch=leader_epoch, recreated_epoch=leader_epoch)


def counters(
    now_ms: int, *, broker_epoch: int = 0, controller_epoch: int = 0, producer_id: int = 0
) -> dict[str, bytes]:
    """Return counters above everything that a store which continued from these, or was accepted before, can have given
    out."""
    second = (now_ms // 1000) << _PER_SECOND
    return {
        BROKER_EPOCHS: b"%d" % max(broker_epoch + _EPOCHS, second),
        CONTROLLER_EPOCHS: b"%d" % (controller_epoch + _EPOCHS),
        PRODUCER_IDS: b"%d" % max(producer_id + _EPOCHS, second),
    }
