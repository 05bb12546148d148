"""Holds the comments ``# guarded by LOCK`` beside attributes to the code: in its text, and while it runs.

A guard is an attribute of the same object (``lock``), ``the log's lock``, or ``the directory's lock``. Another comment
that begins with ``set`` says in words why no lock is needed.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

import pytest

LOGS_LOCK: Final = "the log's lock"
DIRECTORYS_LOCK: Final = "the directory's lock"
_GUARD: Final = re.compile(r"# guarded by (.+)")
_REASON: Final = re.compile(r"# set ")


def guards(cls: type) -> Mapping[str, str | None]:
    """The attributes that ``__init__`` comments on, with their guards; None: none is needed."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, str | None] = {}
    for statement in ast.walk(_method(source, "__init__")):
        comment = comments.get(getattr(statement, "end_lineno", 0) or 0, "")
        guard = _GUARD.search(comment)
        if guard is not None or _REASON.search(comment):
            found |= dict.fromkeys(_targets(statement), None if guard is None else guard[1])
    return found


def changed_later(cls: type) -> set[str]:
    """The attributes that other methods than ``__init__`` assign."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    methods = [one for one in body.body if isinstance(one, ast.FunctionDef) and one.name != "__init__"]
    return {name for method in methods for node in ast.walk(method) for name in _targets(node)}


def _method(source: str, name: str) -> ast.FunctionDef:
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    return next(one for one in body.body if isinstance(one, ast.FunctionDef) and one.name == name)


def _targets(node: ast.AST) -> Iterator[str]:
    """The attributes of ``self`` that a statement assigns."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = [*node.targets]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    while targets:
        one = targets.pop()
        if isinstance(one, ast.Tuple | ast.List):
            targets += one.elts
        elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self":
            yield one.attr


def watch(
    patch: pytest.MonkeyPatch, classes: list[type], owners_lock: Callable[[object, str], Any]
) -> Mapping[tuple[str, str], str]:
    """From now on note each assignment to a guarded attribute by a thread that does not hold its lock: class and
    attribute, and where. ``owners_lock`` returns the lock of the log or directory that an object belongs to, or None:
    then one thread has it."""
    wrong: dict[tuple[str, str], str] = {}
    for cls in classes:
        patch.setattr(cls, "__setattr__", _checked(cls, guards(cls), owners_lock, wrong))
    return wrong


def _checked(
    cls: type,
    known: Mapping[str, str | None],
    owners_lock: Callable[[object, str], Any],
    wrong: dict[tuple[str, str], str],
) -> Callable[[object, str, object], None]:
    plain: Any = cls.__setattr__

    def assign(self: object, name: str, value: object) -> None:
        guard = known.get(name)
        frame = sys._getframe(1)
        if guard is not None and frame.f_code.co_name != "__init__":
            is_owners = guard in (LOGS_LOCK, DIRECTORYS_LOCK)
            lock = owners_lock(self, guard) if is_owners else getattr(self, guard)
            if lock is not None and not _is_held(lock) and not _is_being_made(self, frame):
                wrong[cls.__name__, name] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        plain(self, name, value)

    return assign


def _is_being_made(one: object, frame: FrameType | None) -> bool:
    """Whether a caller is its ``__init__``: no other thread has it yet."""
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is one:
            return True
        frame = frame.f_back
    return False


def _is_held(lock: Any) -> bool:
    """Whether this thread holds it; of a plain lock only whether some thread does."""
    return bool(lock._is_owned() if hasattr(lock, "_is_owned") else lock.locked())
