"""Requests with thousands of elements: no step of the event loop grows with them, and their answers are whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

import pytest

from seglog.broker.offload import LARGE_FRAME, SLICE
from seglog.broker.request_slices import _LISTS, answer_in_slices
from seglog.broker.requests import Answer, RequestContext
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_writer import write_message
from seglog.protocol.messages import Message
from seglog.protocol.schema import fields_of, request_class
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.request_steps import REQUESTS, TOPIC, Request, largest_step
from tests.cases import case
from tests.kit.waiting import wait_until

COUNT: Final = 8_000
MOST: Final = 45_000
"""Calls in one step: some milliseconds. A handler that asks about all elements at once makes 20 to 200 for each."""
_CHEAP: Final = {
    "OffsetCommit": 5,
    "TxnOffsetCommit": 5,
    "OffsetDelete": 5,
    "DescribeTopicPartitions": 6,
    "ConsumerGroupHeartbeat": 10,
}
"""Calls for each element where all are one decision: one record, one epoch, one order."""
_WITHOUT: Final = {
    ApiKey.PRODUCE: "10,000 partitions at most",
    ApiKey.CREATE_TOPICS: "10,000 partitions at most",
    ApiKey.UPDATE_FEATURES: "refused beyond the features that there are",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "three kinds of entities",
    ApiKey.ALTER_CLIENT_QUOTAS: "a write to the store for each entity",
    ApiKey.CREATE_DELEGATION_TOKEN: "refused without authentication; 1,000 renewers at most",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "refused without authentication; its owners are one set",
    ApiKey.DESCRIBE_ACLS: "refused",
    ApiKey.CREATE_ACLS: "refused",
    ApiKey.DELETE_ACLS: "refused",
    ApiKey.LIST_CONFIG_RESOURCES: "kinds of resources",
    ApiKey.SHARE_GROUP_HEARTBEAT: "refused",
    ApiKey.SHARE_GROUP_DESCRIBE: "refused",
    ApiKey.SHARE_FETCH: "refused",
    ApiKey.SHARE_ACKNOWLEDGE: "refused",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "refused",
    ApiKey.ADD_RAFT_VOTER: "refused",
    ApiKey.STREAMS_GROUP_DESCRIBE: "refused",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "refused",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "refused",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "refused",
}


def _has_list(key: int) -> bool:
    return any(field.is_array for field in fields_of(request_class(key, APIS[key].high)))


def test_every_api_with_a_list_is_counted() -> None:
    counted = {make(0)[0] for make in REQUESTS.values()}
    assert {ApiKey(key) for key in APIS if _has_list(key)} - counted - _WITHOUT.keys() == set()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with RunningNode(tmp_path_factory.mktemp("steps")) as running, Wire(running.bootstrap) as wire:
        wire.create_topic(TOPIC)
        yield running


@pytest.mark.parametrize("name", REQUESTS)
def test_no_step_of_the_loop_grows_with_a_request(broker: RunningNode, wire: Wire, name: str) -> None:
    key, version, few = REQUESTS[name](1)
    wire.ask(key, version, **few)  # builds what is built once
    key, version, many = REQUESTS[name](COUNT)
    with largest_step(broker) as step:
        wire.ask(key, version, **many)
    assert step.calls <= MOST + _CHEAP.get(name, 0) * COUNT


_LONG: Final[Mapping[str, Request]] = {
    "OffsetFetch": (
        ApiKey.OFFSET_FETCH,
        None,
        {"groups": [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}] * 250},
    ),
    "DescribeConfigs": (
        ApiKey.DESCRIBE_CONFIGS,
        None,
        {
            "resources": [
                {"resource_type": 32, "resource_name": f"{number}", "configuration_keys": None} for number in range(400)
            ],
            "include_synonyms": True,
            "include_documentation": True,
        },
    ),
}
"""Requests that are too short for the thread. Their answers are long."""


@pytest.mark.parametrize("name", _LONG)
def test_no_step_of_the_loop_grows_with_an_answer(broker: RunningNode, wire: Wire, name: str) -> None:
    key, version, request = _LONG[name]
    assert len(write_message(request_class(key, APIS[key].high), request)) < LARGE_FRAME - 100
    if name == "OffsetFetch":
        _commit_offsets(wire, 150)
    wire.ask(key, version, **request)  # builds what is built once
    with largest_step(broker) as step:
        wire.ask(key, version, **request)
    assert step.calls <= MOST // 3


def _commit_offsets(wire: Wire, count: int) -> None:
    wire.create_topic("many", count)
    offset = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    request = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "many", "partitions": [{"partition_index": number, **offset} for number in range(count)]}],
    }

    def is_committed() -> bool:
        wire.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"])
        (topic,) = wire.ask(ApiKey.OFFSET_COMMIT, 8, **request).topics
        return {one.error_code for one in topic.partitions} == {0}

    wait_until(is_committed, "the group's coordinator")


def test_all_keys_of_a_resource_are_described_once(wire: Wire) -> None:
    all_keys = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
    some = {**all_keys, "configuration_keys": ["log.retention.ms"]}
    found = wire.ask(ApiKey.DESCRIBE_CONFIGS, resources=[all_keys, some, all_keys, some]).results
    assert [one.error_code for one in found] == [0, 0, ErrorCode.INVALID_REQUEST, 0]
    assert [len(found[number].configs or ()) for number in (1, 2, 3)] == [1, 0, 1]


@pytest.mark.parametrize("key", _LISTS)
def test_the_answer_is_that_of_the_whole_request(key: int) -> None:
    """For lists in lists of any length, also empty ones and ones that repeat a name."""
    asked, answered, _ = _LISTS[key]

    def handler(request: Message, _: RequestContext) -> Answer:
        return {"throttle": 0, **_answer(request, asked, answered)}

    async def handler_that_waits(request: Message, context: RequestContext) -> Answer:
        await asyncio.sleep(0)
        return handler(request, context)

    context = RequestContext(key, APIS[key].high, "", "", "")
    for seed in range(50):
        case()
        request = _request(Random(seed), asked)
        whole = handler(request, context)
        for one in (handler, handler_that_waits):
            assert asyncio.run(answer_in_slices(one, request, context)) == whole, seed


def _request(rng: Random, lists: tuple[str, ...]) -> Any:
    """Elements of the innermost list are numbers, all others have names, of which some repeat, but never next to
    each other."""
    count = rng.choice((0, 1, 2, SLICE - 1, SLICE, SLICE + 1, 3 * SLICE)) if len(lists) == 1 else rng.randrange(4)
    if len(lists) == 1:
        return Message(**{lists[0]: list(range(count))})
    elements = [_request(rng, lists[1:]) for _ in range(count)]
    for number, element in enumerate(elements):
        element.name = f"name-{number % 3}"
    return Message(**{lists[0]: elements})


def _answer(request: Any, asked: tuple[str, ...], answered: tuple[str, ...]) -> dict[str, Any]:
    elements = getattr(request, asked[0])
    if len(asked) == 1:
        return {answered[0]: [{"number": one} for one in elements]}
    return {answered[0]: [{"name": one.name, **_answer(one, asked[1:], answered[1:])} for one in elements]}
