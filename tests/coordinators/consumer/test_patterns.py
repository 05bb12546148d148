"""Patterns of topics; tests/interop/test_group_decisions.py compares random ones with Kafka's."""

from __future__ import annotations

import pytest

from seglog.coordinators.consumer.patterns import MAX_PATTERN_LENGTH, check_pattern, resolve_patterns
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode


def test_a_pattern_matches_whole_names_also_of_internal_topics() -> None:
    topics = ["a", "ab", "b", "__consumer_offsets"]
    assert resolve_patterns(["a", "a.*", ".*", "x"], topics) == {
        "a": {"a"},
        "a.*": {"a", "ab"},
        ".*": set(topics),
        "x": set(),
    }


def test_a_broken_pattern_is_refused_in_kafkas_words_and_matches_nothing() -> None:
    with pytest.raises(CoordinatorError) as refused:
        check_pattern("a[")
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert str(refused.value) == "SubscribedTopicRegex `a[` is not a valid regular expression: missing closing ]."
    assert resolve_patterns(["a["], ["a", "a["]) == {"a[": set()}


@pytest.mark.parametrize("pattern", ["a" * (MAX_PATTERN_LENGTH + 1), "(.?){999}" * 40], ids=["long", "large program"])
def test_a_pattern_that_costs_too_much_is_refused(pattern: str) -> None:
    with pytest.raises(CoordinatorError) as refused:
        check_pattern(pattern)
    assert refused.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_that_backtracks_for_ever_elsewhere_takes_no_time() -> None:
    assert resolve_patterns(["(a*)*b"], ["a" * 249]) == {"(a*)*b": set()}
    check_pattern("|".join(["x" * 31] * 2_000))
