"""The keywords of `recover` and `status`: those that `RecoveryOptions` declares, checked before anything is reached."""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any
from unittest import mock

import pytest

from jdbc_state.model import lost_commits_error
from spark_2pc_sink import recover, status
from spark_2pc_sink.errors import ConfigurationError, HaltCause, HaltError
from spark_2pc_sink.options import RecoveryOptions, StatusOptions
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


def test_the_signature_of_status_is_the_connections_and_its_own_options() -> None:
    """An id may be left out, where all sinks are meant. One time-out is for everything."""
    given = shown(status)
    given.remove(("transactional_id", "str | None", "None"))
    own = [(row.names[0], row.type, row.default) for row in reference(StatusOptions)]
    logins = {"database_password", "password_command", "require_tls"}
    tables = {"state_schema", "state_table", "history_table", "history_batches"} | logins
    assert given == [*declared(lambda name: name in {"kafka", "database"}), *own, *declared(tables.__contains__)]


def test_a_glob_chooses_of_all_sinks() -> None:
    """Beside one name it has no meaning."""
    with pytest.raises(ConfigurationError, match="match='orders-\\*': must not be combined with transactional_id"):
        status(**SIDES, transactional_id="orders", match="orders-*")


@pytest.mark.parametrize("timeout_s", [0, 3_601])
def test_the_time_out_has_bounds(timeout_s: int) -> None:
    with pytest.raises(ConfigurationError, match=f"timeout_s={timeout_s}: it must be at "):
        status(**SIDES, timeout_s=timeout_s)


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


def test_a_halt_in_the_first_claim_of_a_run_gets_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's first recovery comes before any batch, and its error is all that the operator sees."""
    sides = Sides()
    sides.start()
    halt = lost_commits_error(sides.row(), "generation 7")
    monkeypatch.setattr(sides.store, "claim", mock.Mock(side_effect=halt))
    with pytest.raises(HaltError) as halted:
        sides.recovery().run(query_id="query-1", run_id="next")
    assert isinstance(halted.value.report, RecoveryReport)
    assert halted.value.cause is HaltCause.COMMITS_LOST


@pytest.mark.parametrize(("aborted", "level"), [(False, logging.INFO), (True, logging.WARNING)])
def test_only_an_action_that_is_not_routine_is_a_warning(
    caplog: pytest.LogCaptureFixture, aborted: bool, level: int
) -> None:
    """A decided batch is committed after each crash; one that Kafka has aborted is owed to it."""
    caplog.set_level(logging.INFO)
    sides = Sides()
    pair = sides.start()
    sides.decide(pair)
    if aborted:
        sides.kafka.end(pair, commit=False)
    sides.recovery().run(query_id="query-1", run_id="next")
    (line,) = [record for record in caplog.records if record.getMessage().startswith("orders: recovered: ")]
    assert line.levelno == level
    assert ("Kafka is owed batch 0" in line.getMessage()) is aborted
