"""Options that several commands have, said once: a `NamedTuple` of typer's options, which a command takes as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


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
