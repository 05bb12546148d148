"""The finalized features of a cluster: which levels brokers may change, and which brokers may join."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.features import (
    FEATURES,
    GROUP_VERSION,
    NO_FEATURES,
    SUPPORTED,
    TRANSACTION_VERSION,
    FeatureError,
    FeatureUpdate,
    FeatureUpdateError,
    FinalizedFeatures,
    UpgradeType,
    check_registration,
    decode_features,
    encode_features,
    finalize_missing,
    highest_levels,
    update_features,
    updated,
)
from seglog.cluster.model import BrokerRegistration, InvalidStateError, VersionRange, broker_name, decode_broker, encode
from tests.cluster.cluster_member import ClusterMember, stores
from tests.cluster.contract import SOON
from tests.cluster.faulty import Faulty

OLD = {**SUPPORTED, TRANSACTION_VERSION: VersionRange(0, 1)}
UP, SAFE, UNSAFE = UpgradeType
AT_2 = FinalizedFeatures(epoch=4, levels={TRANSACTION_VERSION: 2})


def broker(node: int, features: Mapping[str, VersionRange]) -> BrokerRegistration:
    return BrokerRegistration(node_id=node, epoch=node, kept_since=0, features=features)


def to(level: int, kind: int) -> dict[str, FeatureUpdate]:
    return {TRANSACTION_VERSION: FeatureUpdate(level, kind)}


def test_a_registration_carries_what_the_broker_supports() -> None:
    value = encode(broker(1, SUPPORTED))
    assert decode_broker(broker_name(1), value).features == SUPPORTED
    without = value.replace(b'"features"', b'"otherwise"')
    assert decode_broker(broker_name(1), without).features == {}


def test_levels_go_up_and_with_permission_down() -> None:
    brokers = {1: broker(1, SUPPORTED), 2: broker(2, SUPPORTED)}
    assert updated(NO_FEATURES, to(1, UP), brokers, 1) == FinalizedFeatures(epoch=1, levels={TRANSACTION_VERSION: 1})
    assert updated(AT_2, to(2, UP), brokers, 1).levels == AT_2.levels
    for kind in (SAFE, UNSAFE):
        assert updated(AT_2, to(1, kind), brokers, 1).levels == {TRANSACTION_VERSION: 1}
        assert updated(AT_2, to(0, kind), brokers, 1).levels == {}
        assert updated(AT_2, to(2, kind), brokers, 1).levels == AT_2.levels


@pytest.mark.parametrize(
    ("before", "updates", "why"),
    [
        (AT_2, to(1, UP), "Can't downgrade the version of this feature without setting the upgrade type"),
        (NO_FEATURES, to(1, SAFE), "Can't downgrade to a newer version."),
        (AT_2, to(-1, SAFE), "cannot be less than 0."),
        (AT_2, to(1, 0), "does not support the given upgrade type."),
        (AT_2, to(3, UP), "Local controller 1 only supports versions 0-2"),
        (NO_FEATURES, to(2, UP), "Broker 2 only supports versions 0-1"),
        (NO_FEATURES, {"no.version": FeatureUpdate(1, UP)}, "Local controller 1 does not support this feature."),
        (NO_FEATURES, {"no.version": FeatureUpdate(0, UP)}, "Feature no.version not found."),
    ],
)
def test_an_update_that_is_not_possible_says_why(
    before: FinalizedFeatures, updates: dict[str, FeatureUpdate], why: str
) -> None:
    ((name, update),) = updates.items()
    with pytest.raises(FeatureUpdateError) as refused:
        updated(before, updates, {1: broker(1, SUPPORTED), 2: broker(2, OLD)}, 1)
    assert str(refused.value).startswith(f"Invalid update version {update.level} for feature {name}. ")
    assert why in str(refused.value)


def test_a_broker_that_says_nothing_supports_nothing() -> None:
    with pytest.raises(FeatureUpdateError, match=r"Broker 2 does not support this feature\."):
        updated(NO_FEATURES, to(1, UP), {2: broker(2, {})}, 1)
    assert highest_levels([broker(1, SUPPORTED), broker(2, {})]) is None
    assert highest_levels([broker(1, SUPPORTED), broker(2, OLD)]) == {GROUP_VERSION: 1, TRANSACTION_VERSION: 1}
    assert highest_levels([broker(1, {"other.version": VersionRange(0, 1)})]) == {}


def test_a_broker_without_a_finalized_level_is_refused() -> None:
    check_registration(AT_2, SUPPORTED)
    check_registration(NO_FEATURES, {})
    with pytest.raises(
        FeatureError,
        match=r"does not support finalized version 2 of transaction\.version\. The broker wants a version between 0 "
        r"and 1, inclusive\.",
    ):
        check_registration(AT_2, OLD)


@pytest.mark.parametrize("value", [b"", b"[]", b'{"epoch": 1}', b'{"epoch": 1, "levels": {"a": "x"}}'])
def test_a_value_that_cannot_be_read_is_no_value(value: bytes) -> None:
    with pytest.raises(InvalidStateError):
        decode_features(value)


def run(path: Path, work: Callable[[list[Faulty]], Coroutine[Any, Any, None]]) -> None:
    async def with_stores() -> None:
        async with stores(f"sqlite:{path / 'store'}", 3) as made:
            await asyncio.wait_for(work(made), SOON)

    asyncio.run(with_stores())


def test_the_controller_finalizes_an_older_store_once_all_brokers_support_it(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        old, new = ClusterMember(made[0], 1, features={}), ClusterMember(made[1], 2)
        await old.join()
        await new.join()
        new.run(controller=True)
        await new.controls(1)
        assert await finalize_missing(made[1]) is None
        assert new.view.features == NO_FEATURES
        await old.membership.leave()
        await new.sees(lambda: new.view.features.level(TRANSACTION_VERSION) == 2)
        assert new.view.features.epoch == 1
        with pytest.raises(FeatureError):
            await ClusterMember(made[2], 3, features=OLD).join()
        assert await finalize_missing(made[1]) is None

    run(tmp_path, work)


def test_an_update_reaches_all_brokers_and_decides_who_joins(tmp_path: Path) -> None:
    async def work(made: list[Faulty]) -> None:
        one, two = ClusterMember(made[0], 1), ClusterMember(made[1], 2)
        await one.join()
        await two.join()
        await finalize_missing(made[0])
        assert await update_features(made[0], to(1, SAFE), 1, validate_only=True) is None
        written = await update_features(made[0], to(1, SAFE), 1, validate_only=False)
        assert written is not None
        levels = {GROUP_VERSION: 1, TRANSACTION_VERSION: 1}
        assert decode_features(written.value) == FinalizedFeatures(epoch=2, levels=levels)
        await two.sees(lambda: two.view.features.epoch == 2)
        old = ClusterMember(made[2], 3, features=OLD)
        await old.join()
        with pytest.raises(FeatureUpdateError, match="Broker 3 only supports versions 0-1"):
            await update_features(made[0], to(2, UP), 1, validate_only=False)

    run(tmp_path, work)


def test_a_broker_that_registers_during_an_update_has_to_look_again(tmp_path: Path) -> None:
    """Whichever commit is first, no broker is registered without a finalized level."""

    async def work(made: list[Faulty]) -> None:
        one = ClusterMember(made[0], 1)
        await one.join()
        await made[0].create(FEATURES, encode_features(FinalizedFeatures(epoch=1, levels={TRANSACTION_VERSION: 1})))
        for node in range(2, 12):
            joining = ClusterMember(made[1], node, features=OLD)
            outcomes = await asyncio.gather(
                joining.join(),
                update_features(made[0], to(2, UP), 1, validate_only=False),
                return_exceptions=True,
            )
            assert sum(isinstance(one, FeatureError | FeatureUpdateError) for one in outcomes) == 1, outcomes
            await joining.membership.leave()
            await update_features(made[0], to(1, SAFE), 1, validate_only=False)

    run(tmp_path, work)
