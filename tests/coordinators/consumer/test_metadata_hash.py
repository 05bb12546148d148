"""Hashes that Kafka 4.4 computed; tests/interop/test_group_decisions.py compares random ones."""

from __future__ import annotations

from uuid import UUID

from seglog.coordinators.consumer.metadata_hash import group_hash, topic_hash

ID = UUID("0f0e0d0c-0b0a-4908-8706-050403020100")


def test_topic_hash_is_kafkas() -> None:
    assert topic_hash("t", ID, []) == -306051793546727314
    assert topic_hash("orders.eu", ID, [[], []]) == 6394564755093231162
    assert topic_hash("t", ID, [["b", "a", "a"], ["𝄞", "\uffee"]]) == -5811545055329978747


def test_group_hash_is_kafkas() -> None:
    assert group_hash({}) == 0
    assert group_hash({"b": 1, "a": -2}) == -7441158178328187894


def test_racks_count_in_any_order_and_topics_in_that_of_their_names() -> None:
    assert topic_hash("t", ID, [["a", "b"]]) == topic_hash("t", ID, [["b", "a"]])
    assert topic_hash("t", ID, [["a", "b"]]) != topic_hash("t", ID, [["ab"]])
    assert topic_hash("t", ID, [["a"], []]) != topic_hash("t", ID, [[], ["a"]])
    assert group_hash({"a": 1, "b": 2}) == group_hash({"b": 2, "a": 1}) != group_hash({"a": 2, "b": 1})
