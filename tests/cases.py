"""How many cases a random test ran: it calls `case()` for each, and the run's summary says the number.

@given(st.binary())
def test_anything(data: bytes) -> None:
    case()
    ...
"""

from __future__ import annotations

from typing import Final

from hypothesis import settings

PROPERTY: Final = "random cases"
"""Name under which a test's report carries its number, across processes too (pytest-xdist)."""


class _Counter:
    def __init__(self) -> None:
        self.cases = 0


_counter = _Counter()


def is_long() -> bool:
    """Whether this is `make test-long`, where each random test runs many more cases."""
    return settings.get_current_profile_name() == "long"


def case(number: int = 1) -> None:
    """The running test has tried ``number`` more cases."""
    _counter.cases += number


def take() -> int:
    """Cases since the last call; for `tests/conftest.py`."""
    cases, _counter.cases = _counter.cases, 0
    return cases
