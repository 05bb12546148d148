"""Forty scripts of faults, each met by a producer of three hundred records or by a consumer of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from seglog.core.error_codes import ErrorCode
from seglog.faults.fault import Fault

__all__ = ["CASES", "FaultCase"]


class FaultCase(NamedTuple):
    """``name`` is the row of the table in docs/testing.md. ``faults`` come in order, each after the one before."""

    name: str
    side: str
    faults: tuple[Fault, ...]


def _error(api: str, error: ErrorCode, *, times: int | None = 1, applied: bool | None = None) -> Fault:
    return Fault(effect="error", api=api, error=error, times=times, applied=applied)


_LOST: Final = Fault(effect="lose", api="Produce", nth=2)
_UNSENT: Final = Fault(effect="lose", api="Produce", nth=2, applied=False)

_PRODUCER: Final[dict[str, tuple[Fault, ...]]] = {
    "Produce: NOT_LEADER_OR_FOLLOWER": (_error("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER),),
    "Produce: NOT_LEADER_OR_FOLLOWER, five times": (_error("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=5),),
    "Produce: UNKNOWN_TOPIC_OR_PARTITION": (_error("Produce", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),),
    "Produce: NOT_ENOUGH_REPLICAS, three times": (_error("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, times=3),),
    "Produce: NOT_ENOUGH_REPLICAS_AFTER_APPEND, applied": (
        _error("Produce", ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, applied=True),
    ),
    "Produce: REQUEST_TIMED_OUT": (_error("Produce", ErrorCode.REQUEST_TIMED_OUT),),
    "Produce: REQUEST_TIMED_OUT, applied": (_error("Produce", ErrorCode.REQUEST_TIMED_OUT, applied=True),),
    "Produce: KAFKA_STORAGE_ERROR": (_error("Produce", ErrorCode.KAFKA_STORAGE_ERROR),),
    "Produce: CORRUPT_MESSAGE": (_error("Produce", ErrorCode.CORRUPT_MESSAGE),),
    "Produce: an answer lost": (_LOST,),
    "Produce: an answer lost, by reset": (Fault(effect="lose", api="Produce", nth=2, then="reset"),),
    "Produce: three answers lost": (Fault(effect="lose", api="Produce", nth=2, times=3),),
    "Produce: a request lost": (_UNSENT,),
    "Produce: a request lost, by reset": (Fault(effect="lose", api="Produce", nth=2, applied=False, then="reset"),),
    "Produce: a third of the answers lost": (Fault(effect="lose", api="Produce", times=8, probability=0.33, seed=1),),
    "Produce: a third of the requests lost": (
        Fault(effect="lose", api="Produce", times=8, probability=0.33, seed=2, applied=False),
    ),
    "Produce: an answer cut in its size": (Fault(effect="cut", api="Produce", nth=2, size=2),),
    "Produce: an answer cut in its header": (Fault(effect="cut", api="Produce", nth=2, size=7),),
    "Produce: an answer cut in its body": (Fault(effect="cut", api="Produce", nth=2, size=20),),
    "Produce: an answer delayed by 1 s": (Fault(effect="delay", api="Produce", nth=2, seconds=1),),
    "Produce: a request delayed by 1 s": (Fault(effect="delay", api="Produce", nth=2, seconds=1, applied=False),),
    "Produce: throttled for 0.5 s": (Fault(effect="throttle", api="Produce", nth=2, seconds=0.5),),
    "Produce: two requests reordered": (Fault(effect="reorder", api="Produce", nth=2, count=2, times=2, seconds=0.5),),
    "Produce: an answer lost, then three connections refused": (_LOST, Fault(effect="refuse", times=3)),
    "Produce: an answer lost, then an error, then a request lost": (
        _LOST,
        _error("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Fault(effect="lose", api="Produce", applied=False, then="reset"),
    ),
    "Metadata: LEADER_NOT_AVAILABLE, three times": (_error("Metadata", ErrorCode.LEADER_NOT_AVAILABLE, times=3),),
    "Metadata: an answer lost": (Fault(effect="lose", api="Metadata"),),
    "InitProducerId: COORDINATOR_LOAD_IN_PROGRESS": (_error("InitProducerId", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),),
    "InitProducerId: an answer lost": (Fault(effect="lose", api="InitProducerId"),),
}
_CONSUMER: Final[dict[str, tuple[Fault, ...]]] = {
    "Fetch: NOT_LEADER_OR_FOLLOWER": (_error("Fetch", ErrorCode.NOT_LEADER_OR_FOLLOWER),),
    "Fetch: UNKNOWN_LEADER_EPOCH": (_error("Fetch", ErrorCode.UNKNOWN_LEADER_EPOCH),),
    "Fetch: KAFKA_STORAGE_ERROR, three times": (_error("Fetch", ErrorCode.KAFKA_STORAGE_ERROR, times=3),),
    "Fetch: UNKNOWN_TOPIC_OR_PARTITION": (_error("Fetch", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),),
    "Fetch: an answer lost": (Fault(effect="lose", api="Fetch"),),
    "Fetch: half of the answers lost": (Fault(effect="lose", api="Fetch", times=5, probability=0.5, seed=3),),
    "Fetch: an answer cut in its header": (Fault(effect="cut", api="Fetch", size=7),),
    "Fetch: an answer cut in its records": (Fault(effect="cut", api="Fetch", size=30_000),),
    "Fetch: an answer delayed by 1 s": (Fault(effect="delay", api="Fetch", seconds=1),),
    "ListOffsets: NOT_LEADER_OR_FOLLOWER": (_error("ListOffsets", ErrorCode.NOT_LEADER_OR_FOLLOWER),),
    "ListOffsets: an answer lost": (Fault(effect="lose", api="ListOffsets"),),
}

CASES: Final = (
    *(FaultCase(name, "producer", faults) for name, faults in _PRODUCER.items()),
    *(FaultCase(name, "consumer", faults) for name, faults in _CONSUMER.items()),
)
assert len(CASES) == 40
