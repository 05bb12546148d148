"""Commands that delete ask on a terminal, unless `--yes` is given; `--dry-run` shows what they would delete."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.broker_thread import RunningNode
from tests.cli.run import Ran, Run

Answer = Callable[..., Ran]


@pytest.fixture
def terminal(run: Run, broker: RunningNode, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Run a command whose standard input is a terminal, at which ``answer`` is typed."""

    def act(*arguments: str | Path, answer: str) -> Ran:
        ours, theirs = os.openpty()
        with monkeypatch.context() as patch, os.fdopen(theirs, "r") as stdin:
            patch.setenv("SEGLOG_BOOTSTRAP", broker.bootstrap)
            patch.setattr(sys, "stdin", stdin)
            os.write(ours, f"{answer}\n".encode())
            try:
                return run(*arguments)
            finally:
                os.close(ours)

    return act


def test_a_topic_is_deleted_after_a_yes(terminal: Answer, wire: Run, topic_name: str) -> None:
    delete = ("topics", "delete", topic_name)
    wire("topics", "create", topic_name)
    for answer in ("n", ""):
        kept = terminal(*delete, answer=answer)
        assert (kept.code, kept.text) == (2, "")
        assert f"Delete topic {topic_name} with all records? [y/N]: " in kept.err
        assert kept.err.endswith("seglog: nothing was changed\n")
    dry = terminal(*delete, "no-such", "--dry-run", answer="")
    assert (dry.code, dry.text, dry.err) == (
        2,
        f"would delete {topic_name}\n",
        "seglog: topic no-such does not exist\n",
    )
    shown = wire(*delete, "no-such", "--dry-run", "--if-exists", "--json")
    assert (shown.code, shown.objects) == (
        0,
        [{"topic": name, "done": False, "error": None} for name in (topic_name, "no-such")],
    )
    assert topic_name in wire("topics", "list").lines
    assert terminal(*delete, answer="y").text == f"deleted {topic_name}\n"
    assert topic_name not in wire("topics", "list").lines


def test_yes_does_not_ask(terminal: Answer, wire: Run, topic_name: str) -> None:
    wire("topics", "create", topic_name)
    ran = terminal("topics", "delete", topic_name, "--yes", answer="n")
    assert (ran.code, ran.text, ran.err) == (0, f"deleted {topic_name}\n", "")


def test_groups_and_their_offsets_are_deleted_after_a_yes(terminal: Answer, wire: Run, topic_name: str) -> None:
    group = f"group-{topic_name}"
    wire("topics", "create", topic_name)
    wire("groups", "reset-offsets", group, "-t", topic_name, "--to-earliest", "--execute")
    offsets = ("groups", "delete-offsets", group, "-t", topic_name)
    assert wire(*offsets, "--dry-run").text == f"would delete offset 0 of {topic_name}-0\n"
    assert wire("groups", "delete", group, "--dry-run").text == f"would delete {group}\n"
    assert "Delete group" in terminal("groups", "delete", group, answer="n").err
    assert terminal("groups", "delete", "--all-groups", answer="n").code == 2
    kept = terminal(*offsets, answer="n")
    assert f"Delete the offsets of group {group} for partition {topic_name}-0?" in kept.err
    assert wire("groups", "describe", group, "--json").objects[0]["partitions"][0]["offset"] == 0
    assert terminal("groups", "delete", group, answer="y").text == f"deleted {group}\n"


def test_an_unclean_election_is_held_after_a_yes(terminal: Answer, wire: Run, topic_name: str) -> None:
    wire("topics", "create", topic_name)
    unclean = ("leaders", "elect", topic_name, "--election-type", "unclean")
    kept = terminal(*unclean, answer="n")
    assert (kept.code, kept.text) == (2, "")
    assert "Records that they lack are lost. [y/N]: " in kept.err
    dry = terminal(*unclean, "--dry-run", answer="")
    assert (dry.code, dry.text, dry.err) == (0, "no partition needs an election\n", "")
    assert "[y/N]" not in terminal("leaders", "elect", topic_name, answer="").err, "the preferred one loses nothing"
    assert terminal(*unclean, answer="y").code == 0


def test_an_open_transaction_is_ended_after_a_yes(terminal: Answer, topic_name: str) -> None:
    kept = terminal("transactions", "force-terminate", topic_name, answer="n")
    assert kept.err == (
        f"Abort the open transaction of {topic_name} and fence its producer? [y/N]: seglog: nothing was changed\n"
    )


def test_a_user_is_deleted_after_a_yes(terminal: Answer) -> None:
    kept = terminal("users", "delete", "ann", "--store", "sqlite:no-such.db", answer="n")
    assert kept.err == "Delete user ann? [y/N]: seglog: nothing was changed\n"


def test_records_are_deleted_after_a_yes(terminal: Answer, wire: Run, topic_name: str) -> None:
    wire("produce", topic_name, stdin=b"a\nb\n")
    delete = ("records", "delete", topic_name, "--before", "end")
    kept = terminal(*delete, answer="n")
    assert f"Delete the records of partition {topic_name}-0 before end?" in kept.err
    assert wire("consume", topic_name, "-e").text == "a\nb\n"
    assert terminal(*delete, answer="y").code == 0
    assert wire("consume", topic_name, "-e").text == ""
