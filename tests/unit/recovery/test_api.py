"""The keywords of `recover` and `status`: those of `RecoveryOptions`, with its defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from typing import Any

import pytest

from spark_2pc_sink import recover, status
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recovery.api import WORDS

OPTIONS = {item.name: Parameter.empty if item.default is MISSING else item.default for item in fields(RecoveryOptions)}


@pytest.mark.parametrize("function", [recover, status])
def test_a_keyword_is_an_option_with_its_default(function: Callable[..., Any]) -> None:
    """What an IDE shows is what is declared; an id may be left out where all sinks are meant."""
    shown = {item.name: item.default for item in signature(function).parameters.values() if item.name not in WORDS}
    declared = {name: OPTIONS[name] for name in shown}
    if function is status:
        declared["transactional_id"] = None
    assert shown == declared
    assert {item.kind for item in signature(function).parameters.values()} == {Parameter.KEYWORD_ONLY}


def test_recover_has_every_option() -> None:
    assert OPTIONS.keys() | WORDS == signature(recover).parameters.keys()


def test_recover_asks_before_it_takes_over() -> None:
    """D10: as the command line does."""
    assert signature(recover).parameters["take_over"].default is False
