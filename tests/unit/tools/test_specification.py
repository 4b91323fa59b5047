"""The runner of the specification: its mutants are those of the specification."""

from __future__ import annotations

import re

from tools.specification import ACTIONS, INVARIANTS, LIVENESS, MUTANTS, SPECIFICATION


def test_every_defect_of_the_specification_is_tried_and_no_other() -> None:
    built_in = set(re.findall(r'Mutant (?:=|#) "([^"]+)"', SPECIFICATION.read_text()))
    assert built_in == {model.name for model in MUTANTS}


def test_every_property_is_broken_by_a_mutant_or_named_with_one_that_is() -> None:
    """`Finishes` is liveness too: TLC does not say which of both was violated."""
    assert {model.breaks for model in MUTANTS} == {*INVARIANTS, *ACTIONS, *LIVENESS} - {"Finishes"}
