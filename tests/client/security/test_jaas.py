"""`sasl.jaas.config`: every text that is written by its rules is read back, and no other is."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.client.security.jaas import parse_jaas
from tests.cases import case

_WORDS = st.from_regex(r"[A-Za-z_][\w.$-]{0,20}", fullmatch=True)
_OPTIONS = st.dictionaries(_WORDS, st.text(st.characters(exclude_characters="\r\n")), max_size=4)


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(_WORDS, _OPTIONS)
def test_options_are_read_back(module: str, options: dict[str, str]) -> None:
    case()
    text = f"{module} required {' '.join(f'{name}={quoted(value)}' for name, value in options.items())} ;"
    found = parse_jaas(text)
    assert (found.module, found.options) == (module, options)


@given(st.text(st.sampled_from("ab ${}:=;\"'\\0\n"), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    case()
    with contextlib.suppress(ValueError):
        parse_jaas(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("m required a=b;", "b"),
        ("m REQUIRED a = 'b c' ;\n", "b c"),
        (r'm required a="\"\\\t\101\x";', '"\\\tAx'),
        ('m required a="";', ""),
        ("m required a=${env:NAME};", "${env:NAME}"),
        ('m required a="x${file:/p:k}y";', "x${file:/p:k}y"),
    ],
)
def test_values(text: str, value: str) -> None:
    assert parse_jaas(text).options == {"a": value}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "m required",
        "m;",
        "m needed a=b;",
        "m required a=b",
        "m required a;",
        "m required a=;",
        "m required a b;",
        'm required a="geheim;',
        'm required a="ge"heim";',
        "m required a=geheim a=geheim;",
        "m required a=geheim; n required b=geheim;",
        "m required a=ge\\heim;",
    ],
)
def test_refused_without_the_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as raised:
        parse_jaas(text)
    assert "heim" not in str(raised.value)


def test_a_module_with_its_options_is_printed_without_values() -> None:
    assert repr(parse_jaas('m required password="geheim";')) == "Jaas(m, password)"
