"""The runner of the specification: its mutants are those of the specification, and TLC's words are understood."""

from __future__ import annotations

import re

import pytest

from tools.specification import ACTIONS, HOLDS, INVARIANTS, LIVENESS, MUTANTS, SPECIFICATION, verdict


def test_every_defect_of_the_specification_is_tried_and_no_other() -> None:
    built_in = set(re.findall(r'Mutant (?:=|#) "([^"]+)"', SPECIFICATION.read_text()))
    assert built_in == {model.name for model in MUTANTS}


def test_every_property_is_broken_by_a_mutant_or_named_with_one_that_is() -> None:
    """`Finishes` is liveness too: TLC does not say which of both was violated."""
    assert {model.breaks for model in MUTANTS} == {*INVARIANTS, *ACTIONS, *LIVENESS} - {"Finishes"}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("Model checking completed. No error has been found.", HOLDS),
        ("Error: Invariant NoneTwice is violated.", "NoneTwice"),
        ("Error: Action property KeptTakesNoRecords is violated.", "KeptTakesNoRecords"),
        ("Error: Temporal properties were violated.", "Settles Finishes"),
        ("Error: Parsing or semantic analysis failed.", ""),
    ],
)
def test_what_tlc_says(said: str, found: str) -> None:
    assert verdict(said) == found
