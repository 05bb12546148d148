"""Large requests in slices: other connections have their turn after each.

Most APIs ask the same about each element of a list, and answer in the order of the request. Such a request is cut into
requests of a few elements, which the handler answers one by one, and their answers are joined. An API whose elements
depend on each other is not listed here: its handler takes turns itself (`seglog.broker.offload.in_turns`).

The size of a request says little about its answer: a few hundred bytes may name one group of a thousand members a
hundred times. So requests of these APIs are cut whatever their size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from copy import copy
from typing import Any, Final, NamedTuple

from seglog.broker.offload import SLICE
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message


class _Lists(NamedTuple):
    """The names of nested lists in a request, from the outermost one, and in its answer."""

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    most: int = SLICE
    """The number of elements that are answered in one step; 1 where the answer to one may be long."""


_LISTS: Final[Mapping[int, _Lists]] = {
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _Lists(("topics", "partitions"), ("topics", "partitions")),
    ApiKey.OFFSET_FETCH: _Lists(("groups",), ("groups",)),
    ApiKey.FIND_COORDINATOR: _Lists(("coordinator_keys",), ("coordinators",)),
    ApiKey.DESCRIBE_GROUPS: _Lists(("groups",), ("groups",), 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _Lists(("group_ids",), ("groups",), 1),
    ApiKey.DELETE_GROUPS: _Lists(("groups_names",), ("results",)),
    ApiKey.DESCRIBE_PRODUCERS: _Lists(("topics", "partition_indexes"), ("topics", "partitions")),
    ApiKey.DESCRIBE_TRANSACTIONS: _Lists(("transactional_ids",), ("transaction_states",)),
    ApiKey.ADD_PARTITIONS_TO_TXN: _Lists(("transactions",), ("results_by_transaction",)),
}


SLICED: Final = _LISTS.keys()


def is_cut(key: int, request: Message) -> bool:
    """Whether a request of any API is answered in more than one slice."""
    lists = _LISTS.get(key)
    return lists is not None and _size(request, lists.asked) > lists.most


async def answer_in_slices(handler: ApiHandler, request: Message, context: RequestContext) -> Answer:
    """The handler's answer to a request of one of the `SLICED` APIs."""
    lists = _LISTS[context.key]
    joined: dict[str, Any] | None = None
    for some in cut(request, lists.asked, lists.most):
        answer = await _answer(handler, some, context)
        if joined is None:
            joined = {**answer, lists.answered[0]: list(answer[lists.answered[0]])}
        else:
            _join(joined[lists.answered[0]], answer[lists.answered[0]], lists.answered[1:])
        await asyncio.sleep(0)
    assert joined is not None
    return joined


async def _answer(handler: ApiHandler, request: Message, context: RequestContext) -> Answer:
    answer = handler(request, context)
    return await answer if isinstance(answer, Awaitable) else answer


def cut(request: Message, lists: tuple[str, ...], most: int) -> Iterator[Message]:
    """The request as requests with at most ``most`` elements of the nested ``lists``, in their order. An element whose
    own list is cut comes first in the next request too.

    >>> whole = Message(topics=[Message(name="a", numbers=[1, 2, 3]), Message(name="b", numbers=[4])])
    >>> for some in cut(whole, ("topics", "numbers"), 2):
    ...     print([(one.name, one.numbers) for one in some.topics])
    [('a', [1, 2])]
    [('a', [3]), ('b', [4])]
    """
    name, inner = lists[0], lists[1:]
    elements = getattr(request, name) or ()
    if not elements:
        yield request
        return
    some: list[Any] = []
    room = most
    for element in elements:
        for piece in cut(element, inner, most) if inner else (element,):
            size = max(_size(piece, inner), 1)
            if size > room:
                yield _with(request, name, some)
                some, room = [], most
            some.append(piece)
            room -= size
    yield _with(request, name, some)


def _size(message: Any, lists: tuple[str, ...]) -> int:
    if not lists:
        return 1
    return sum([_size(one, lists[1:]) for one in getattr(message, lists[0]) or ()])


def _with(request: Message, name: str, elements: list[Any]) -> Message:
    changed = copy(request)
    setattr(changed, name, elements)
    return changed


def _join(before: list[Any], more: list[Any], inner: tuple[str, ...]) -> None:
    """Append the elements. The first continues the last one before if both are of the same name."""
    if inner and before and more and _names(before[-1], inner[0]) == _names(more[0], inner[0]):
        _continue(before, more[0], inner)
        more = more[1:]
    before += more


def _continue(before: list[Any], more: Mapping[str, Any], inner: tuple[str, ...]) -> None:
    last = {**before[-1], inner[0]: list(before[-1][inner[0]])}
    _join(last[inner[0]], more[inner[0]], inner[1:])
    before[-1] = last


def _names(element: Mapping[str, Any], inner: str) -> dict[str, Any]:
    return {name: value for name, value in element.items() if name != inner}
