"""Decisions about generated ACLs are those of Kafka's ``StandardAuthorizer``.

``python -m pytest -m interop --hypothesis-profile=long tests/interop/test_acl_decisions.py`` compares 10,000 sets of
ACLs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from seglog.broker.security.acls import Operation
from tests.broker.security.generated_acls import AclCase, answers, case_of
from tests.cases import case, is_long
from tests.kafka.tools import run_java

_CASES: Final = 300
_MANY_CASES: Final = 10_000


def test_decisions_are_kafkas(tmp_path: Path) -> None:
    cases = [case_of(seed) for seed in range(_MANY_CASES if is_long() else _CASES)]
    file = tmp_path / "cases"
    file.write_text("".join(f"{json.dumps(_question(one))}\n" for one in cases))
    lines = run_java("AclDecisions", [str(file)], with_ours=True).splitlines()
    expected = [json.loads(line) for line in lines if line.startswith("[")]
    assert len(expected) == len(cases)
    assert sum(map(sum, expected)) > len(cases)
    for seed, (one, wanted) in enumerate(zip(cases, expected, strict=True)):
        found = answers(one)
        different = [
            (asked, theirs)
            for asked, ours, theirs in zip((*one.requests, *one.filters), found, wanted, strict=True)
            if ours != theirs
        ]
        case()
        assert not different, (seed, one.super_users, one.everyone, one.acls, different)


def _question(one: AclCase) -> dict[str, object]:
    assert all(asked.operation is not Operation.ALL for asked in one.requests)
    return {
        "super.users": one.super_users,
        "everyone": str(one.everyone).lower(),
        "acls": [[*acl.pattern, *acl.entry] for acl in one.acls],
        "requests": [[*asked.client, asked.operation, asked.resource, asked.name] for asked in one.requests],
        "filters": one.filters,
    }
