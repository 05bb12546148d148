"""Options that several commands share, and the checks of their values.

A `NamedTuple` of typer's options is one parameter of a command; see `with_options`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

from seglog.core.clock import Clock, SystemClock
from seglog.core.errors import SeglogError

Added = TypeVar("Added")
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

JsonLines = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ShowOnly = Annotated[bool, typer.Option("--dry-run", help="Show the effect and change nothing.")]
JsonDocument = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class OptionError(SeglogError, ValueError):
    """A command cannot take the value of an option or an argument."""


class DeclinedError(SeglogError):
    """The user does not want what a command would do."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal before something is deleted; a script is not asked. Raises `DeclinedError`."""
    if yes or sys.stdin is None or not sys.stdin.isatty():
        return
    print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise DeclinedError("nothing was changed")


def with_options(command: Callable[..., int]) -> Callable[..., int]:
    """A command for typer, in which each parameter that is a `NamedTuple` stands for its fields, where it stands.

    >>> from typing import NamedTuple
    >>> class Where(NamedTuple):
    ...     host: str = "localhost"
    ...     port: int = 9092
    >>> @with_options
    ... def ping(count: int, where: Where = Where(), json: bool = False) -> int:
    ...     return count * where.port
    >>> print(signature(ping))
    (count: int, host: str = 'localhost', port: int = 9092, json: bool = False) -> int
    >>> ping(count=2, host="a", port=3, json=False)
    6
    """
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for one in signature(command, eval_str=True).parameters.values():
        fields = _fields(one.annotation)
        if fields:
            groups[one.name] = one.annotation
        parameters += fields or [one]

    @wraps(command)
    def run(**given: Any) -> int:
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(field) for field in group._fields})
        return command(**given)

    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
    vars(run)["__signature__"] = Signature(parameters, return_annotation=int)
    return run


def _fields(annotation: Any) -> list[Parameter]:
    """Of a `NamedTuple`, as parameters."""
    if not (isinstance(annotation, type) and issubclass(annotation, tuple)):
        return []
    hints = get_type_hints(annotation, include_extras=True)
    defaults: Mapping[str, object] = getattr(annotation, "_field_defaults", {})
    return [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=hints[name])
        for name, default in defaults.items()
    ]


def check_choice(option: str, value: str, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is allowed; else raise `OptionError`.

    >>> check_choice("--acks", "2", ("all", "1", "0"))
    Traceback (most recent call last):
    seglog.cli.options.OptionError: --acks must be all, 1 or 0, not 2
    """
    known = list(allowed)
    if value not in known:
        raise OptionError(f"{option} must be {', '.join(known[:-1])} or {known[-1]}, not {value}")
    return value


def key_values(option: str, given: Sequence[str] | None, *, shape: str = "KEY=VALUE") -> dict[str, str]:
    """The pairs of an option that may be given several times. Raises `OptionError`.

    >>> key_values("--set", ["a=1", "b=x=y"])
    {'a': '1', 'b': 'x=y'}
    """
    found = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise OptionError(f"{option}: {text!r} is not {shape}")
        found[key.strip()] = value
    return found


def with_deletions(command: str, added: Mapping[str, Added], deleted: Sequence[str] | None) -> dict[str, Added | None]:
    """What ``--add-config`` sets, and None for what ``--delete-config`` names. `OptionError` if that is nothing, or the
    same name twice.

    >>> with_deletions("configs alter", {"a": "1"}, ["b, c"])
    {'a': '1', 'b': None, 'c': None}
    """
    changes: dict[str, Added | None] = dict(added)
    for name in (part.strip() for text in deleted or () for part in text.split(",")):
        if name in changes:
            raise OptionError(f"{name} is both in --add-config and in --delete-config")
        changes[name] = None
    if not changes:
        raise OptionError(f"{command} needs --add-config or --delete-config")
    return changes


def parse_time(text: str, clock: Clock | None = None) -> int:
    """Milliseconds since 1970, from such a number or from ISO 8601 (in UTC without a zone). ``-90s``, ``-15m``,
    ``-1h``, ``-7d`` and ``-2w`` are relative to now, by ``clock``. Raises ValueError.

    >>> parse_time("1357016400000"), parse_time("2013-01-01T05:00:00Z"), parse_time("2013-01-01")
    (1357016400000, 1357016400000, 1356998400000)
    """
    if text[:1] == "-" and text[1:-1].isdecimal() and text[-1] in _UNITS_MS:
        return (clock or SystemClock()).now_ms() - int(text[1:-1]) * _UNITS_MS[text[-1]]
    if text.lstrip("-").isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def read_properties(path: str) -> dict[str, str]:
    """Keys and values of a Java properties file."""
    from seglog.core.fs import OsFs
    from seglog.storage.formats.properties import decode_properties

    return {key: one.value for key, one in decode_properties(OsFs().read(path), path).items()}


def duration_ms(option: str, text: str) -> int:
    """A number with a unit, in milliseconds.

    >>> duration_ms("--keep", "30d") == 30 * 86_400_000
    True
    """
    if not (text[:-1].isdecimal() and text[-1] in _UNITS_MS):
        raise OptionError(f"{option} {text}: give a number and one of {', '.join(_UNITS_MS)}, as in 30d")
    return int(text[:-1]) * _UNITS_MS[text[-1]]
