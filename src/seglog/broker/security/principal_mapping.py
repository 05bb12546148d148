"""``ssl.principal.mapping.rules``: from the name in a certificate to the name of a principal (KIP-371). Pure.

::

    RULE:^CN=(.*?),OU=.*$/$1/L, DEFAULT

The first rule whose pattern matches the whole name counts. It replaces each match of its pattern in the name, and L
or U changes the case. DEFAULT takes the name as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|$)"
)
"""``SslPrincipalMapper.java``."""
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
_JAVA_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
"""How Java begins a named group."""
_CASES: Final[dict[str, Callable[[str], str]]] = {"L": str.lower, "U": str.upper, "": str}


class MappingRule(NamedTuple):
    """``pattern`` is None for DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """None if the rule does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        return _CASES[self.case](self.pattern.sub(self._replaced, name))

    def _replaced(self, found: re.Match[str]) -> str:
        def put(part: re.Match[str]) -> str:
            if part[1] is not None:
                return part[1]
            number = int(part[2])
            # Of a group that the pattern lacks, Kafka writes the reference itself.
            return (found[number] or "") if number <= found.re.groups else part[0]

        return _REFERENCE.sub(put, self.replacement)


def parse_rules(text: str) -> list[MappingRule]:
    """ValueError for a text that has no such rules. Without a rule there is DEFAULT.

    >>> [rule.apply("CN=Ann,O=x") for rule in parse_rules("RULE:CN=(.*?),.*/$1/L,DEFAULT")]
    ['ann', 'CN=Ann,O=x']
    """
    rules, at = [], 0
    while at < len(text.rstrip()):
        match = _RULE.match(text, at)
        if match is None:
            raise ValueError(f"character {at + 1}: a rule is DEFAULT or RULE:pattern/replacement/[LU]")
        at = match.end()
        pattern = match["pattern"]
        try:
            compiled = None if pattern is None else re.compile(_JAVA_GROUP.sub("(?P<", pattern))
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a pattern: {error}") from None
        rules.append(MappingRule(compiled, match["replacement"] or "", match["case"] or ""))
    return rules or [MappingRule(None, "", "")]


def mapped(rules: Sequence[MappingRule], name: str) -> str | None:
    """The name of the principal; None if no rule matches."""
    for rule in rules:
        found = rule.apply(name)
        if found is not None:
            return found
    return None
