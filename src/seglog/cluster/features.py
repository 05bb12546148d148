"""The features of a cluster (KIP-584): behaviour that all its brokers share, each with a level. Decisions are pure.

    features    `FinalizedFeatures` as JSON; missing in a store in which every level is still 0

A broker registers the levels that it supports. A finalized level is one that all registered brokers support, and a
broker that does not support it cannot register. The store of a new cluster begins with the highest levels of its first
broker. In an older store the controller finalizes the highest levels that all brokers support, once all of them tell
(`finalize_missing`). After that only UpdateFeatures changes levels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from seglog.cluster.formats import BROKER_EPOCHS
from seglog.cluster.model import (
    BROKERS,
    RAISED,
    BrokerRegistration,
    InvalidStateError,
    VersionRange,
    decode_broker,
)
from seglog.cluster.store import (
    MISSING,
    Change,
    CommitConflictError,
    CommitStep,
    MetadataStore,
    StoreError,
    UnknownOutcomeError,
    VersionedValue,
)
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError

FEATURES: Final = "features"
TRANSACTION_VERSION: Final = "transaction.version"
"""From 1 on the coordinator's records are flexible; from 2 on each transaction has its own epoch (KIP-890)."""
GROUP_VERSION: Final = "group.version"
"""From 1 on there are groups of the consumer protocol (KIP-848)."""
SUPPORTED: Final[Mapping[str, VersionRange]] = {
    GROUP_VERSION: VersionRange(0, 1),
    TRANSACTION_VERSION: VersionRange(0, 2),
}
"""The levels that this release supports."""
_DISABLED: Final = VersionRange(0, 0)


class UpgradeType(IntEnum):
    """The changes that an update may make (``FeatureUpdate.UpgradeType``). Both kinds of downgrade do the same, for
    no level has metadata."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """``upgrade_type`` is the number of an `UpgradeType`, or of one that this release does not know."""

    level: int
    upgrade_type: int


class FeatureError(StoreError):
    """This broker does not support a finalized level."""


class FeatureUpdateError(SeglogError):
    """An update was refused; no level has changed."""

    code = ErrorCode.INVALID_UPDATE_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedFeatures:
    """The finalized levels, without those that are 0. ``epoch`` rises with each change; 0: there was none."""

    epoch: int = 0
    levels: Mapping[str, int]

    def level(self, feature: str) -> int:
        return self.levels.get(feature, 0)


NO_FEATURES: Final = FinalizedFeatures(levels={})


def encode_features(features: FinalizedFeatures) -> bytes:
    return json.dumps(
        {"epoch": features.epoch, "levels": dict(features.levels)}, sort_keys=True, separators=(",", ":")
    ).encode()


def decode_features(value: bytes | None) -> FinalizedFeatures:
    """Raises `InvalidStateError`.

    >>> decode_features(encode_features(FinalizedFeatures(epoch=3, levels={"a.version": 1}))).level("a.version")
    1
    """
    if value is None:
        return NO_FEATURES
    try:
        told = json.loads(value)
        levels = {str(name): int(level) for name, level in told["levels"].items()}
        return FinalizedFeatures(epoch=int(told["epoch"]), levels=levels)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidStateError(f"{FEATURES} in the metadata store cannot be read: {error!r}") from error


# Decisions


def check_registration(features: FinalizedFeatures, supported: Mapping[str, VersionRange]) -> None:
    """Raise `FeatureError`, in Kafka's words, if a broker with this support cannot register
    (``ClusterControlManager.processRegistrationFeature``)."""
    for name, level in features.levels.items():
        found = supported.get(name, _DISABLED)
        if level not in found:
            raise FeatureError(
                f"Unable to register because the broker does not support finalized version {level} of {name}. The "
                f"broker wants a version between {found.low} and {found.high}, inclusive."
            )


def highest_levels(brokers: Iterable[BrokerRegistration]) -> dict[str, int] | None:
    """The highest levels that all brokers support; None if one of them does not say what it supports."""
    levels = {name: found.high for name, found in SUPPORTED.items()}
    for broker in brokers:
        if not broker.features:
            return None
        levels = {name: min(level, broker.features.get(name, _DISABLED).high) for name, level in levels.items()}
    return {name: level for name, level in levels.items() if level}


def updated(
    features: FinalizedFeatures,
    updates: Mapping[str, FeatureUpdate],
    brokers: Mapping[int, BrokerRegistration],
    node_id: int,
) -> FinalizedFeatures:
    """The features after all the updates. Raises `FeatureUpdateError` for the first one that is not possible, in
    Kafka's words (``FeatureControlManager``). ``node_id`` is the broker that decides."""
    levels = dict(features.levels)
    for name, update in updates.items():
        reason = _objection(name, update, features.level(name), brokers, node_id)
        if reason is not None:
            raise FeatureUpdateError(f"Invalid update version {update.level} for feature {name}. {reason}")
        levels[name] = update.level
    return FinalizedFeatures(epoch=features.epoch + 1, levels={name: level for name, level in levels.items() if level})


def _objection(
    name: str, update: FeatureUpdate, level: int, brokers: Mapping[int, BrokerRegistration], node_id: int
) -> str | None:
    if update.upgrade_type not in list(UpgradeType):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    nodes = {f"Local controller {node_id}": SUPPORTED}
    nodes |= {f"Broker {node}": broker.features for node, broker in sorted(brokers.items())}
    for node, features in nodes.items():
        supported = features.get(name, _DISABLED)
        if update.level not in supported:
            return f"{node} only supports versions {supported}" if supported.high else f"{node} {_UNSUPPORTED}"
    if update.level < level and update.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > level and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None if name in SUPPORTED else f"Feature {name} not found."


_UNSUPPORTED: Final = "does not support this feature."


# The store


async def finalize_missing(store: MetadataStore) -> VersionedValue | None:
    """Finalize the highest levels that all registered brokers support, in a store that has no features. Return the
    value; None if there is another one, or if a broker of an older release is registered: try again later."""
    found = await store.get_many([FEATURES, BROKER_EPOCHS])
    if FEATURES in found:
        return None
    levels = highest_levels((await _brokers(store)).values())
    if levels is None:
        return None
    return await _write(store, FinalizedFeatures(epoch=1, levels=levels), found)


async def update_features(
    store: MetadataStore, updates: Mapping[str, FeatureUpdate], node_id: int, *, validate_only: bool
) -> VersionedValue | None:
    """Change levels; return the value that has them, None with ``validate_only``. Raises `FeatureUpdateError`, and the
    errors of the store."""
    while True:
        found = await store.get_many([FEATURES, BROKER_EPOCHS])
        before = found.get(FEATURES)
        after = updated(decode_features(before and before.value), updates, await _brokers(store), node_id)
        if validate_only:
            return None
        written = await _write(store, after, found)
        if written is not None:
            return written


async def _brokers(store: MetadataStore) -> dict[int, BrokerRegistration]:
    found = [decode_broker(name, value.value) for name, value in (await store.load(BROKERS)).items()]
    return {broker.node_id: broker for broker in found}


async def _write(
    store: MetadataStore, features: FinalizedFeatures, found: Mapping[str, VersionedValue]
) -> VersionedValue | None:
    """None: decide again. The commit sets the counter of registrations to the value that it has, so that a broker that
    registers meanwhile has to read the features again."""
    now, epochs = found.get(FEATURES), found.get(BROKER_EPOCHS)
    value = encode_features(features)
    steps: list[CommitStep] = [Change(FEATURES, value, MISSING if now is None else now.version)]
    if epochs is not None:
        steps += [Change(BROKER_EPOCHS, epochs.value, epochs.version), RAISED]
    try:
        versions = await store.commit(steps)
    except CommitConflictError:
        return None
    except UnknownOutcomeError:
        written = await store.get(FEATURES)
        return written if written is not None and written.value == value else None
    return VersionedValue(value, versions[0])
