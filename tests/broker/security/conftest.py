"""One secured broker for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.broker_thread import Wire
from tests.broker.security.secured_node import SecuredNode


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    """With the topic ``t``."""
    with SecuredNode(tmp_path_factory.mktemp("secured")) as node:
        with Wire(node.at("PLAINTEXT")) as wire:
            wire.create_topic("t")
        yield node
