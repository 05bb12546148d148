"""Names, types, ranges and documentation of configuration keys, and their conversion to and from text.

A table of keys is a dataclass whose fields are made by `setting`. Parsing follows Kafka's ``ConfigDef.java``: white
space around a value is dropped, booleans are ``true`` and ``false`` in any case, lists are separated by commas.
`Options` are keys that are given by names in any case, such as those of Spark's data sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Protocol, TypeVar

from seglog.core.errors import InvalidConfigError
from seglog.core.suggestions import did_you_mean
from seglog.core.types import MAX_INT32, MAX_INT64

T = TypeVar("T")
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_SETTING: Final = "seglog.setting"
HIDDEN: Final = "[hidden]"
"""Stands for the value of a secret (``Password.java``)."""


class UnfitError(ValueError):
    """An invalid value of an option. The text completes a sentence that begins with "option" and its name."""


class Rule(Protocol):
    """The type and range of one key. ``allowed`` describes the range in an error."""

    @property
    def type(self) -> str: ...
    @property
    def allowed(self) -> str: ...
    def parse(self, value: object) -> Any:
        """The checked value of a text or of a value of the type; ValueError, TypeError or KeyError if invalid."""

    def format(self, value: Any) -> str:
        """The text that parses to ``value``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    """A whole number from ``low`` to ``high``, or the special value ``also`` outside of that range. ``unit`` is for
    documentation."""

    type: str
    low: int
    high: int
    also: int | None = None
    unit: str = "a number"

    @property
    def allowed(self) -> str:
        text = f"{self.low} to {self.high}"
        return text if self.also is None else f"{text}, or {self.also}"

    def parse(self, value: object) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            value = int(value.strip())
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("not a whole number")
        if value != self.also and not self.low <= value <= self.high:
            raise ValueError("out of range")
        return value

    def format(self, value: Any) -> str:
        return str(value)


def int32(low: int, high: int = MAX_INT32, *, also: int | None = None, unit: str = "a number") -> Integer:
    return Integer(type="int", low=low, high=high, also=also, unit=unit)


def int64(low: int, high: int = MAX_INT64, *, also: int | None = None, unit: str = "a number") -> Integer:
    return Integer(type="long", low=low, high=high, also=also, unit=unit)


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    type: ClassVar[str] = "string"
    allowed: ClassVar[str] = "a text"

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            raise TypeError("not a text")
        return value.strip()

    def format(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Typed:
    """Any text, as a value of another of Kafka's types."""

    type: str
    allowed: ClassVar[str] = "a text"

    def parse(self, value: object) -> str:
        return str(value).strip()

    def format(self, value: Any) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class ScaledInteger:
    """A whole number in a larger unit: the value is the number times ``factor``, unless it is the special value."""

    number: Integer
    factor: int

    @property
    def type(self) -> str:
        return self.number.type

    @property
    def allowed(self) -> str:
        return self.number.allowed

    def parse(self, value: object) -> int:
        parsed = self.number.parse(value)
        return parsed if parsed == self.number.also else parsed * self.factor

    def format(self, value: Any) -> str:
        return str(value if value == self.number.also else value // self.factor)


@dataclass(frozen=True, slots=True)
class Real:
    """A number from ``low`` to ``high``; never NaN."""

    low: float
    high: float
    type: ClassVar[str] = "double"

    @property
    def allowed(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    def parse(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise TypeError("not a number")
        number = float(value)
        if not self.low <= number <= self.high:
            raise ValueError("out of range")
        return number

    def format(self, value: Any) -> str:
        return repr(value).replace("e+", "E")  # as Java writes the largest ones


@dataclass(frozen=True, slots=True)
class Boolean:
    type: ClassVar[str] = "boolean"
    allowed: ClassVar[str] = "true or false"

    def parse(self, value: object) -> bool:
        if isinstance(value, str):
            return {"true": True, "false": False}[value.strip().lower()]
        if not isinstance(value, bool):
            raise TypeError("neither true nor false")
        return value

    def format(self, value: Any) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Enumeration:
    """One of a few named values. Names are case-sensitive, as in Kafka, which makes an exception of some."""

    choices: Mapping[str, Any]
    ignores_case: bool = False
    type: ClassVar[str] = "string"

    @property
    def allowed(self) -> str:
        return ", ".join(self.choices)

    def parse(self, value: object) -> Any:
        if isinstance(value, str) and self.ignores_case:
            return {name.lower(): choice for name, choice in self.choices.items()}[value.strip().lower()]
        if isinstance(value, str):
            return self.choices[value.strip()]
        if value not in self.choices.values():
            raise ValueError("no such choice")
        return value

    def format(self, value: Any) -> str:
        return next(name for name, choice in self.choices.items() if choice == value)


def one_of(*words: str) -> Enumeration:
    """One of ``words``, in any case."""
    return Enumeration({word: word for word in words}, ignores_case=True)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text that a function parses, which raises `UnfitError`. ``allowed`` is Markdown, for documentation."""

    allowed: str
    convert: Callable[[str], Any]
    type: ClassVar[str] = "string"

    def parse(self, value: object) -> Any:
        if not isinstance(value, str):
            raise TypeError("not a text")
        return self.convert(value)

    def format(self, value: Any) -> str:
        return str(value)


def not_empty(text: str) -> str:
    """A text without the white space around it."""
    if not text.strip():
        raise UnfitError(" is empty")
    return text.strip()


_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes above 0, with Spark's suffixes.

    >>> Size().parse("64 MB"), Size().format(128 << 20)
    (67108864, '128m')
    """

    high: int = MAX_INT64
    type: ClassVar[str] = "long"

    @property
    def allowed(self) -> str:
        most = f", of at most {self.format(self.high)}" if self.high < MAX_INT64 else ""
        return f"a size above 0, as in 134217728 or 128m{most}"

    def parse(self, value: object) -> int:
        match = re.fullmatch(r"([0-9]{1,19})\s*([kmg]?)b?", str(value).strip().lower())
        if not match:
            raise ValueError("not a size")
        found = int(match[1]) * _SIZES[match[2]]
        if not 0 < found <= self.high:
            raise ValueError("out of range")
        return found

    def format(self, value: Any) -> str:
        unit = next((name for name in "gmk" if value % _SIZES[name] == 0), "")
        return f"{value // _SIZES[unit]}{unit}"


_MILLISECONDS: Final = {
    "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1, "us": 0.001, "min": 60_000, "": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Duration:
    """A time in milliseconds, in the syntax of Spark's ``JavaUtils.timeStringAs``; the default unit is ms.

    >>> Duration().parse("15m"), Duration().format(900_000)
    (900000, '15m')
    """

    type: ClassVar[str] = "long"
    allowed: ClassVar[str] = "a time, as in 500ms, 30s, 15m, 2h or 1d"

    def parse(self, value: object) -> int:
        match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", str(value).strip().lower())
        if not match or match[2] not in _MILLISECONDS:
            raise ValueError("not a time")
        return int(int(match[1]) * _MILLISECONDS[match[2]])

    def format(self, value: Any) -> str:
        unit = next(name for name, size in _MILLISECONDS.items() if value % size == 0)
        return f"{int(value / _MILLISECONDS[unit])}{unit}"


class NameSet(frozenset[str]):
    """Names in the order in which they were given. Equal to any set of the same names."""

    order: tuple[str, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> NameSet:
        made = cls(names)
        made.order = tuple(dict.fromkeys(names))
        return made


@dataclass(frozen=True, slots=True)
class Names:
    """A set of names, maybe empty, written with commas between them in the order in which they were given; saying one
    twice is allowed.

    >>> policies = Names(("compact", "delete"))
    >>> policies.format(policies.parse("delete,compact")), policies.format(frozenset({"delete", "compact"}))
    ('delete,compact', 'compact,delete')
    """

    names: tuple[str, ...]
    type: ClassVar[str] = "list"

    @property
    def allowed(self) -> str:
        return f"none, one or more of {', '.join(self.names)}"

    def parse(self, value: object) -> frozenset[str]:
        if isinstance(value, str):
            value = [name.strip() for name in value.split(",")] if value.strip() else []
        if not isinstance(value, Iterable):
            raise TypeError("not a list")
        found = value if isinstance(value, frozenset) else NameSet.of(list(value))
        if not found.issubset(self.names):
            raise ValueError("no such name")
        return found

    def format(self, value: Any) -> str:
        order = value.order if isinstance(value, NameSet) else self.names
        return ",".join(name for name in order if name in value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table of keys. ``attribute`` is the key's name in Python; ``doc`` is one line, with the unit.

    Errors do not show the value of a secret. ``use`` is for tables whose keys do not all have an effect everywhere.
    ``otherwise`` describes what holds without the key, in Markdown, if that is more than ``default``.
    """

    name: str
    rule: Rule
    default: Any
    doc: str
    attribute: str
    is_secret: bool = False
    use: str = ""
    otherwise: str = ""

    def parse(self, value: object) -> Any:
        """The value. `InvalidConfigError` names the key, the value and the allowed ones."""
        try:
            return self.rule.parse(value)
        except (ValueError, TypeError, KeyError) as error:
            if self.is_secret:
                raise InvalidConfigError(f"{self.name}={HIDDEN} is not allowed: {self.rule.allowed}") from None
            near = _nearest_word(self.rule, value) if isinstance(value, str) else ""
            raise InvalidConfigError(f"{self.name}={value!r} is not allowed: {self.rule.allowed}{near}") from error


def _nearest_word(rule: Rule, text: str) -> str:
    """`did_you_mean` for the first wrong word of a text, if the rule has words."""
    match rule:
        case Enumeration(choices=words):
            return did_you_mean(text, words)
        case Boolean():
            return did_you_mean(text, ("true", "false"))
        case Names(names=names):
            return next((did_you_mean(one, names) for one in text.split(",") if one.strip() not in names), "")
        case _:
            return ""


def setting(
    rule: Rule,
    doc: str,
    *,
    default: T,
    name: str | None = None,
    is_secret: bool = False,
    use: str = "",
    otherwise: str = "",
) -> T:
    """A field of a table's dataclass. Its key is ``name``, or the field's name with dots for underscores, which no key
    has."""
    metadata = {_SETTING: (name, rule, default, doc, is_secret, use, otherwise)}
    return field(default=default, repr=not is_secret, metadata=metadata)


def option(name: str, rule: Rule, doc: str, *, default: Any = None, use: str = "", otherwise: str = "") -> Setting:
    """A row that is no field of a dataclass, because several rows lead to one field."""
    return Setting(name, rule, default, doc, "", use=use, otherwise=otherwise)


def settings_of(table: Any) -> dict[str, Setting]:
    """The rows of a dataclass made with `setting`, by key."""
    found = {}
    for item in fields(table):
        if _SETTING in item.metadata:
            given, rule, default, doc, *more = item.metadata[_SETTING]
            name = given or item.name.replace("_", ".")
            found[name] = Setting(name, rule, default, doc, item.name, *more)
    return found


def check(instance: Any, rows: Iterable[Setting]) -> None:
    """Check the settings of a new frozen instance, and replace texts by their values."""
    for row in rows:
        given = getattr(instance, row.attribute)
        parsed = row.parse(given)
        if parsed is not given:
            object.__setattr__(instance, row.attribute, parsed)


def unknown(name: str, known: Iterable[str], what: str) -> InvalidConfigError:
    """The error for an unknown key. It suggests the nearest known one."""
    return InvalidConfigError(f"unknown {what} {name!r}{did_you_mean(name, known)}")


class Options(Mapping[str, Setting]):
    """Settings by name. Their texts are given by names in any case: Spark passes names in lower case."""

    def __init__(self, *rows: Setting) -> None:
        self._rows = {row.name: row for row in rows}
        self._by_lower = {row.name.lower(): row for row in rows}

    def __getitem__(self, name: str) -> Setting:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, name: str) -> Setting | None:
        return self._by_lower.get(name.lower())

    def unknown(self, name: str) -> InvalidConfigError:
        """The error for an option that does not exist; it suggests the nearest one."""
        return InvalidConfigError(f"unknown option {name!r}{did_you_mean(name, self, cutoff=0.5)}")


class OptionValues(dict[str, Any]):
    """The values that a user gave, by name of the option; `of` is the default where there is none."""

    def __init__(self, table: Options) -> None:
        super().__init__()
        self._table = table

    def add(self, option: Setting, text: str) -> None:
        """Parse a text. `InvalidConfigError` names the option, the text and the allowed values."""
        self[option.name] = parse_option(option, text)

    def of(self, name: str) -> Any:
        return self[name] if name in self else self._table[name].default

    def by_attribute(self, rows: Iterable[Setting]) -> dict[str, Any]:
        """The values of ``rows`` by their names in Python."""
        return {row.attribute: self.of(row.name) for row in rows}


def parse_option(option: Setting, text: str) -> Any:
    """The value of a text. `InvalidConfigError` names the option, the text and the allowed values."""
    try:
        return option.rule.parse(text)
    except UnfitError as error:
        raise InvalidConfigError(f"option {option.name}{error}") from error
    except (ValueError, TypeError, KeyError) as error:
        shown = HIDDEN if option.is_secret else repr(text)
        match option.rule:
            case Enumeration(choices=words):
                allowed = " or ".join(words)
            case Boolean():
                allowed = "it must be true or false"
            case Integer(low=low, high=high):
                bounds = f"from {low} to {high}" if high < MAX_INT64 else f"of at least {low}"
                allowed = f"it must be a whole number {bounds}"
            case rule:
                allowed = f"it must be {rule.allowed}"
        near = _nearest_word(option.rule, text)
        raise InvalidConfigError(f"option {option.name} is {shown}: {allowed}{near}") from error
