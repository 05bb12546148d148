"""The list of faults cannot go stale: what it would change is there, and so are the tests that it names."""

from __future__ import annotations

import pytest

from tests.plant import ROOT, TABLE, Fault, names_of_tests, read_faults, table

_FAULTS = read_faults()


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text().count(fault.old) == 1, "the source has moved on"
    assert fault.new != fault.old
    assert fault.tests
    for test in fault.tests:
        file, name, *_ = test.split("[")[0].split("::")
        assert name in names_of_tests(ROOT / file), f"{test} is gone"


def test_names_are_different() -> None:
    assert len({fault.name for fault in _FAULTS}) == len(_FAULTS)


def test_the_table_is_that_of_the_list() -> None:
    assert TABLE.read_text() == table(_FAULTS), "python -m tests.plant --write"
