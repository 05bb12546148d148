"""The broker that has a log directory open, as another process of its user asks it
(`seglog.storage.adopt.segment_request`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from seglog.client.client_config import ClientConfig
from seglog.client.produce.batch_producer import FENCED
from seglog.client.produce.coordinator import BUSY, MOVED
from seglog.client.retries import Retries
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import AdoptError, NotLeaderError, ProducerFencedError, RequestFailedError
from seglog.storage.adopt.segment_request import SegmentRequest
from seglog.storage.directory.owner_socket import exchange
from seglog.storage.formats.adopt_manifest import Intake

_RETRIABLE: Final = (MOVED | BUSY | {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}) - {
    ErrorCode.NOT_COORDINATOR
}
_NOT_HERE: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class DirectoryOwner:
    """Whoever has ``directory`` open. ``node_id`` and ``bootstrap`` are known once `is_broker` has returned True."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.node_id = -1
        self.bootstrap = ""

    def is_broker(self) -> bool:
        line = exchange(self.directory, b'{"do": "status"}\n')
        answer = json.loads(line) if line else {}
        broker = answer.get("ok", {}).get("broker")
        if broker is None:
            return False
        self.node_id, self.bootstrap = broker["node_id"], broker["bootstrap"]
        return True

    def note(self, application: str) -> int:
        """Note that an application writes through the broker; its last version in the ledger, -1 if none."""
        return int(self._once("note", {"application": application})["last"])

    def begin_intake(self, job: str, application: str, version: int, intake: Intake) -> None:
        """Note that a job is about to commit files. `AdoptError` if another one has read them meanwhile."""
        try:
            self._once("begin_intake", {"job": job, "application": application, "version": version, "intake": intake})
        except _RefusalError as refusal:
            raise AdoptError(f"{self.directory}: {refusal}") from None

    def end_intake(self, job: str, *, committed: bool) -> None:
        """Make the marks of a job's files count, or drop them. May be repeated."""
        self._once("end_intake", {"job": job, "committed": committed})

    def adopt(self, request: SegmentRequest, config: ClientConfig) -> None:
        """Have the leader take over a segment, which need not be committed then. `NotLeaderError` if the broker does
        not lead the partition, `OwnerGoneError` if it has ended: then the segment may have been taken over."""
        retries = Retries(config, config.delivery_timeout)
        while True:
            try:
                self._once("adopt", request._asdict())
            except _RefusalError as refusal:
                if refusal.code in FENCED:
                    raise ProducerFencedError(str(refusal)) from None
                if refusal.code in _NOT_HERE:
                    raise NotLeaderError(str(refusal)) from None
                if refusal.code not in _RETRIABLE:
                    raise AdoptError(f"{self.directory}: {refusal}") from None
                retries.wait(str(refusal))
            else:
                return

    def _once(self, do: str, fields: Mapping[str, object]) -> Mapping[str, Any]:
        line = exchange(self.directory, json.dumps({"do": do, **fields}).encode() + b"\n")
        if not line:
            raise OwnerGoneError(f"the broker of {self.directory} has ended")
        answer = json.loads(line)
        if "ok" not in answer:
            name, text = answer["error"]
            raise _RefusalError(f"{name}: {text}", answer["code"])
        found: Mapping[str, Any] = answer["ok"]
        return found


class OwnerGoneError(RequestFailedError):
    """The broker has ended before it answered."""


class _RefusalError(RequestFailedError):
    """The answer is an error."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = ErrorCode(code)
