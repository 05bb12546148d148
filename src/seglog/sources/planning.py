"""Decides which partitions a query reads, how many tasks share them, and which small ranges share a task. Pure.

How a range is divided depends on where the records come from: `directories.planning`, `brokers.planning`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar, assert_never

from seglog.core.errors import UnknownTopicError
from seglog.core.suggestions import did_you_mean
from seglog.core.types import TopicPartition
from seglog.sources.options.read_options import Assign, Selection, Subscribe, SubscribePattern
from seglog.sources.options.topic_pattern import compile_java

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)
"""Read only if named, as a consumer's pattern does not match them (``exclude.internal.topics``)."""

WORTH_A_TASK: Final = 4 << 20
"""A further task with fewer bytes costs more than it saves, unless options ask for it."""
_UNKNOWN_SHARE: Final = 32 << 20
"""Bytes of a task if the number of cores is unknown: its start then takes a tenth of its time."""
_OPENING: Final = 128 << 10
"""The cost of opening another partition, in bytes that could be read meanwhile."""
_TASKS_PER_CORE: Final = 4
_FEW: Final = 32
"""So many ranges need not share tasks, whatever their size. With more, each task must be worth its start, also if there
is a core for each."""


def select(selection: Selection, available: Sequence[TopicPartition]) -> list[TopicPartition]:
    """The selected partitions, sorted. An `UnknownTopicError` names one that does not exist, and those that do."""
    match selection:
        case None | SubscribePattern():
            pass
        case Subscribe(topics=topics):
            there = {partition.topic for partition in available}
            for topic in topics:
                if topic not in there:
                    names = sorted(there - INTERNAL_TOPICS)
                    raise UnknownTopicError(f"there is no topic {topic!r}; {_listed(topic, names)}")
        case Assign(partitions=partitions):
            known = set(available)
            for partition in partitions:
                if partition not in known:
                    names = [str(one) for one in sorted(available) if one.topic not in INTERNAL_TOPICS]
                    raise UnknownTopicError(f"there is no partition {partition}; {_listed(str(partition), names)}")
        case _:
            assert_never(selection)
    return sorted(filter(selector(selection), available))


def selector(selection: Selection) -> Callable[[TopicPartition], bool]:
    """Whether a selection has a partition, if that exists."""
    match selection:
        case None:
            return lambda one: one.topic not in INTERNAL_TOPICS
        case SubscribePattern(pattern=pattern):
            matches = compile_java(pattern).fullmatch
            return lambda one: one.topic not in INTERNAL_TOPICS and matches(one.topic) is not None
        case Subscribe(topics=topics):
            wanted = frozenset(topics)
            return lambda one: one.topic in wanted
        case Assign(partitions=partitions):
            return frozenset(partitions).__contains__
        case _:
            assert_never(selection)


def _listed(name: str, names: Sequence[str]) -> str:
    some = f"existing: {', '.join(names[:10]) or 'none'}{' …' if len(names) > 10 else ''}"
    return some + did_you_mean(name, names, cutoff=0.7)


def spread(size: int, total: int, *, max_bytes: int, cores: int | None, is_divided: bool) -> int:
    """The number of tasks for a range of ``size`` bytes of ``total`` in a query.

    There are enough tasks for all ``cores`` (None if unknown), as long as each has `WORTH_A_TASK`, unless options have
    divided the range already (``is_divided``). No task has much more than ``max_bytes``.
    """
    if is_divided:
        wanted = 1
    elif cores is None:
        wanted = size // _UNKNOWN_SHARE
    else:
        wanted = min(_ceil(size * cores, max(total, 1)), size // WORTH_A_TASK)
    return max(_ceil(size, max_bytes), wanted, 1)


class SizedRange(Protocol):
    """A range of records whose size in bytes is known, or estimated."""

    @property
    def size(self) -> int: ...


R = TypeVar("R", bound=SizedRange)


def pack(ranges: Sequence[R], *, max_bytes: int, cores: int | None) -> list[tuple[R, ...]]:
    """Group neighbouring ``ranges`` into tasks, in order, if there are many small ones.

    Up to `_TASKS_PER_CORE` ranges per core, and no more than `_FEW`, each keep a task of their own. A task has at most
    ``max_bytes``, unless a single range has more.
    """
    if len(ranges) <= min(_TASKS_PER_CORE * (cores or 2), _FEW):
        return [(one,) for one in ranges]
    sizes = [one.size for one in ranges]
    cost = sum(sizes) + _OPENING * len(ranges)
    share = _UNKNOWN_SHARE if cores is None else max(WORTH_A_TASK, _ceil(cost, _TASKS_PER_CORE * cores))
    tasks: list[list[R]] = []
    number, spent, held = -1, 0, 0
    for one, size in zip(ranges, sizes, strict=True):
        if spent // share > number or held + size > max_bytes:
            tasks.append([])
            number, held = spent // share, 0
        tasks[-1].append(one)
        spent, held = spent + size + _OPENING, held + size
    return [tuple(task) for task in tasks]


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
