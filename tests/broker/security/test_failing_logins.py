"""Many logins that fail do not keep a client that is logged in from its answers, and leave nothing behind."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import Wire
from tests.broker.security.failing_logins import ATTEMPTS, fail_often
from tests.broker.security.secured_node import SecuredNode, log_in
from tests.kit.waiting import wait_until

_LOGINS: Final = 1000


def test_a_thousand_failing_logins_cost_little_and_delay_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login that fails costs no hash of a password: SCRAM's client computes it, and the broker never does."""
    hashed: list[object] = []
    with SecuredNode(tmp_path, {"max.connection.creation.rate": "100000"}) as node:
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *given: hashed.append(given))
        host, _, port = node.at("SASL").rpartition(":")

        def flood() -> list[int | Exception]:
            return asyncio.run(fail_often(host, int(port), itertools.islice(itertools.cycle(ATTEMPTS), _LOGINS)))

        with Wire(node.at("SASL"), timeout=120) as honest, ThreadPoolExecutor(1) as pool:
            log_in(honest)
            ends = pool.submit(flood)
            answers = 0
            while not ends.done() or not answers:
                assert honest.ask(ApiKey.METADATA, topics=None).brokers
                answers += 1
            assert answers > 10
            assert set(ends.result()) == {ErrorCode.SASL_AUTHENTICATION_FAILED}
            assert len(ends.result()) == _LOGINS
            wait_until(lambda: len(node.connections("SASL")) <= 1, "the refused connections to end")
            with Wire(node.at("SASL")) as other:
                log_in(other)
        assert not hashed
