"""The keywords of `recover` and `status`, checked before anything is reached; and the command that remedies print."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import pytest

from jdbc_state.model import lost_commits_error
from spark_2pc_sink import recover, status
from spark_2pc_sink.errors import ConfigurationError, HaltCause, HaltError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recovery.recover_command import sink_flags
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


SINK: dict[str, Any] = {
    "transactional_id": "orders",
    "kafka": {"bootstrap.servers": "a:1,b:2"},
    "database": "postgresql+psycopg2://app:secret@h:5432/d?sslpassword=hidden",
}


def command(**options: Any) -> str:
    return f"spark-2pc recover {sink_flags(RecoveryOptions.parse(**{**SINK, **options}))}"


def test_it_has_the_sink_and_both_sides_and_no_password() -> None:
    assert command() == (
        "spark-2pc recover --transactional-id orders --bootstrap-server a:1,b:2 --database postgresql://app@h:5432/d"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"state_schema": "ops"}, ["--state-schema", "ops"]),
        ({"state_table": "mine", "history_table": "old"}, ["--state-table", "mine", "--history-table", "old"]),
        ({"state_table": '"Mine"'}, ["--state-table", '"Mine"']),
        ({"database": "postgresql:///d?host=/run/pg"}, ["--database", "postgresql:///d?host=%2Frun%2Fpg"]),
        ({"history_batches": 0}, ["--history-batches", "0"]),
        (
            {"database": "postgresql://app@h/d", "password_command": "cat 'my file'"},
            ["--password-command", "cat 'my file'"],
        ),
        ({"transactional_id": "it's"}, ["--transactional-id", "it's"]),
        (
            {"kafka": {"bootstrap.servers": "a:1", "security.protocol": "SSL"}},
            ["--command-config", "FILE"],
        ),
    ],
)
def test_names_that_are_not_the_default_are_in_it(options: dict[str, Any], words: list[str]) -> None:
    """D2: a command that looks in another place would find nothing, and say so in vain."""
    found = shlex.split(command(**options))
    assert any(found[at : at + len(words)] == words for at in range(len(found)))
