"""``subscribePattern`` beside Java's own regular expressions."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

from seglog.sources.options.topic_pattern import compile_java

pytestmark = pytest.mark.xdist_group("spark")

NAMES = ["flights", "fl", "fl-2013", "a.b", "axb", "a.b-c_d", "7", "Upper", "UPPER", "xx", "Q.E", "__consumer_offsets"]


@pytest.mark.parametrize(
    "pattern",
    [
        "fl.*", r"\Qa.b\E.*", r"\Qa.b", r"\QQ.E", r"\p{Alpha}{2}", r"[\p{Digit}x]+", r"[^\p{Lower}]+", r"\p{Lu}\w*",
        r"(?<stem>f)l(?:ights)?", r"f\w++", r"f\w++s", r"(?>fl|flights)", r"a\.b\z", r"(?i)UPPER", "a|.*b", "[a-x.]+",
        r"(?!__).*", r".*(?<!s)", r"(x)\1", r"[\w.-]*", r"\d|\D{2}", r"fl(-\d{4})?+", "[^f]*", r"\x41*U.*", r"^a.b$",
        "", ".{2,3}", r"[.\-_a-d]+",
    ],
)  # fmt: skip
def test_the_same_topics_as_in_java(spark: SparkSession, pattern: str) -> None:
    jvm = spark._jvm
    assert jvm is not None
    expected = [name for name in NAMES if jvm.java.util.regex.Pattern.matches(pattern, name)]
    found = compile_java(pattern)
    assert [name for name in NAMES if found.fullmatch(name)] == expected


@pytest.mark.parametrize("pattern", ["(", "[a-z&&[^b]]", "[a[bc]]", r"\p{InGreek}", r"\P{Lu}", "*"])
def test_refuses_patterns_that_python_cannot_express(pattern: str) -> None:
    with pytest.raises(re.error):
        compile_java(pattern)
