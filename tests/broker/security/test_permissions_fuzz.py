"""Well-formed requests by chance from a client that may do some of what they ask: each gets an answer that can be read,
and none that it must not see."""

from __future__ import annotations

import logging
import struct
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

import pytest

from seglog.broker.security.acls import Operation, PatternType, Permission, ResourceType
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import Wire
from tests.broker.fuzzing import TOPICS, Requests, versions
from tests.broker.security.acl_node import AclNode, acl, add
from tests.broker.test_fuzz import check
from tests.cases import case, is_long

_ROUNDS: Final = 100 if is_long() else 4
_MAY_END: Final = {ApiKey.PRODUCE, ApiKey.CREATE_ACLS, ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS}
"""A producer with acks=0 learns of errors by its connection, and Kafka ends it for ACLs with unknown parts."""
_OF_CLUSTER: Final = (Operation.CREATE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.IDEMPOTENT_WRITE)
_NUMBER: Final = struct.pack(">i", -77)
_SENTINEL: Final = struct.pack(">hh", ApiKey.API_VERSIONS, 0) + _NUMBER + struct.pack(">h", -1)
_KINDS: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def test_every_request_of_a_client_with_some_permissions_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = TOPICS[0]
    with AclNode(tmp_path, ["ann"]) as node, Wire(node.bootstrap) as wire:
        for topic in TOPICS[:3]:
            wire.create_topic(topic)
        ids = [topic.topic_id for topic in node.node.topics]
        for kind in _KINDS:
            add(wire, acl("ann", Operation.ALL, kind, "f", kind=PatternType.PREFIXED))
        for one in _OF_CLUSTER:
            add(wire, acl("ann", one, ResourceType.CLUSTER, "kafka-cluster"))
        add(wire, acl("ann", Operation.ALL, ResourceType.TOPIC, secret, permission=Permission.DENY))
        with caplog.at_level(logging.ERROR, "seglog.broker"), closing(_Client(node)) as client:
            for key, version in versions():
                requests = Requests(Random(f"{key} {version}"), ids)
                for number in range(_ROUNDS):
                    answer = client.ask(requests.frame(key, version, number))
                    case()
                    if answer:
                        check(key, version, answer)
                    else:
                        assert key in _MAY_END, (key, version, number)
        assert secret in node.node.topics.by_name
    assert "could not be answered" not in caplog.text


class _Client:
    """One connection at a time; a new one after each that the broker has ended."""

    def __init__(self, node: AclNode) -> None:
        self._node = node
        self._wire: Wire | None = None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def ask(self, frame: bytes) -> bytes | None:
        """The answer; None if there is none."""
        self._wire = wire = self._wire or self._node.of("ann")
        answer = None
        try:
            wire.send_raw(frame)
            wire.send_raw(_SENTINEL)
            while True:
                (size,) = struct.unpack(">i", wire.receive(4))
                data = bytes(wire.receive(size))
                if data.startswith(_NUMBER):
                    return answer
                answer = data
        except ConnectionError:
            self.close()
            return None
