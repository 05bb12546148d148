"""A bounded map that drops the least recently used value. Thread-safe."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Of = TypeVar("Of")


class Lru(Generic[Of]):
    """Values with costs whose sum is at most ``most()``, which is called whenever a value is added.

    A value is dropped, not closed: a caller that still holds it may go on using it.

    >>> cache = Lru[str](lambda: 2)
    >>> for key in (1, 2, 3):
    ...     cache.put(key, f"value {key}")
    >>> cache.get(1), cache.get(3), len(cache)
    (None, 'value 3', 2)
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._items: OrderedDict[Hashable, tuple[Of, int]] = OrderedDict()  # guarded by _lock
        self._cost = 0  # guarded by _lock
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Hashable) -> Of | None:
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            self._items.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Of, cost: int = 1) -> None:
        dropped = []
        most = self._most()
        with self._lock:
            self._take(key)
            self._items[key] = (value, cost)
            self._cost += cost
            while self._cost > most and len(self._items) > 1:
                dropped.append(self._take(next(iter(self._items))))
        del dropped  # with the lock free: the end of a value may be a system call

    def pop(self, key: Hashable) -> Of | None:
        with self._lock:
            return self._take(key)

    def clear(self) -> None:
        with self._lock:
            items, self._items, self._cost = self._items, OrderedDict(), 0
        del items

    def _take(self, key: Hashable) -> Of | None:
        found = self._items.pop(key, None)
        if found is None:
            return None
        self._cost -= found[1]
        return found[0]
