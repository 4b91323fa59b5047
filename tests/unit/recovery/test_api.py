"""The keywords of `recover` and `status`: those that `RecoveryOptions` declares, checked before anything is reached."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import pytest

from jdbc_state.model import lost_commits_error
from spark_2pc_sink import recover, status
from spark_2pc_sink.errors import ConfigurationError, HaltCause, HaltError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recovery.report import RecoveryReport
from spark_2pc_sink.transactions import TransactionTool
from tests.unit.recovery.test_recovery import Sides
from tools.reference_pages.options import reference

SIDES: dict[str, Any] = {"kafka": {"bootstrap.servers": "h:9092"}, "database": "postgresql://h/d"}


def shown(function: Callable[..., Any]) -> list[tuple[str, str, str | None]]:
    """Name, type and default of each keyword, in their order."""
    parameters = signature(function).parameters.values()
    assert {item.kind for item in parameters} == {Parameter.KEYWORD_ONLY}
    return [
        (item.name, item.annotation, None if item.default is item.empty else repr(item.default)) for item in parameters
    ]


def declared(wanted: Callable[[str], bool]) -> list[tuple[str, str, str | None]]:
    rows = [(row.names[0], row.type, row.default) for row in reference(RecoveryOptions)]
    return [row for row in rows if wanted(row[0])]


def test_the_signature_of_recover_is_the_declaration() -> None:
    assert shown(recover) == declared(lambda _: True)


def test_a_glob_chooses_of_all_sinks() -> None:
    """Beside one name it has no meaning."""
    with pytest.raises(ConfigurationError, match="match='orders-\\*': must not be combined with transactional_id"):
        status(**SIDES, transactional_id="orders", match="orders-*")


@pytest.mark.parametrize(
    ("function", "name"), [(recover, "data_base"), (status, "data_base"), (TransactionTool, "kafak")]
)
def test_the_nearest_keyword_is_named(function: Callable[..., Any], name: str) -> None:
    meant = {"data_base": "database", "kafak": "kafka"}[name]
    with pytest.raises(ConfigurationError, match=rf"{name}='\*\*\*': there is no such option; did you mean '{meant}'"):
        function(**{name: "pass-word"})


def test_a_halt_of_the_state_store_gets_a_report() -> None:
    """It knows neither the sink's connections nor what a report is."""
    sides = Sides()
    sides.start()
    with pytest.raises(HaltError) as halted, sides.recovery().explaining():
        raise lost_commits_error(sides.row(), "generation 7")
    explained = halted.value
    assert isinstance(explained.report, RecoveryReport)
    assert (explained.report.cause, explained.report.settled) == (HaltCause.COMMITS_LOST, False)
    assert explained.report.remedies == explained.remedies
