"""Times and durations in the sentences of `seglog explain`, and the sentence itself."""

from __future__ import annotations

from typing import Final, NamedTuple

from seglog.cli.output import format_time

Fact = int | float | str | bool | None
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
_CENTURY: Final = 36_525 * 86_400_000


class Statement(NamedTuple):
    """One sentence or two about ``about``. ``rule`` is the key of the configuration, or the fact, that decides."""

    about: str
    rule: str
    text: str
    facts: dict[str, Fact]

    def document(self) -> dict[str, object]:
        return {"about": self.about, "rule": self.rule, "text": self.text, **self.facts}


def say(about: str, rule: str, text: str, **facts: Fact) -> Statement:
    return Statement(about, rule, text, facts)


def duration(ms: int) -> str:
    """The two largest units of a duration.

    >>> [duration(ms) for ms in (0, 999, 60_000, 3_661_000, 7 * 86_400_000, 90_000_000)]
    ['0 ms', '999 ms', '1 min', '1 h 1 min', '7 d', '1 d 1 h']
    >>> duration(10**18)
    'more than 100 years'
    """
    if ms >= _CENTURY:
        return "more than 100 years"
    parts: list[str] = []
    for unit, size in _UNITS:
        number, ms = divmod(ms, size)
        if number:
            parts.append(f"{number} {unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or "0 ms"


def moment(ms: int, now_ms: int) -> str:
    """A time, and how far it is from now.

    >>> moment(60_000, 0), moment(0, 60_000), moment(5, 5)
    ('1970-01-01T00:01:00Z (in 1 min)', '1970-01-01T00:00:00Z (1 min ago)', '1970-01-01T00:00:00.005Z (now)')
    """
    if ms == now_ms:
        return f"{format_time(ms)} (now)"
    relative = f"in {duration(ms - now_ms)}" if ms > now_ms else f"{duration(now_ms - ms)} ago"
    return f"{format_time(ms)} ({relative})"
