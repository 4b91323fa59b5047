"""What a look says beside its verdict, what the database is told; and the keywords of `recover` and `status`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any

import pytest

from jdbc_state.model import lost_commits_error
from spark_2pc_sink import recover, status
from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.errors import ConfigurationError, HaltCause, HaltError, StateStoreError
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recipe.resolve import OpenTransactionEnd
from spark_2pc_sink.recovery.diagnosis import with_choices
from spark_2pc_sink.recovery.report import RecoveryReport, sink_flags
from spark_2pc_sink.transactions import TransactionTool
from tests.unit.recovery.test_recovery import ID, Sides, decided, told
from tests.unit.recovery.test_report import LIVES
from tools.reference_pages.options import reference


def look(sides: Sides) -> RecoveryReport:
    return sides.recovery().diagnosis.dry_run()


def opened(pair: ProducerIdAndEpoch | None, *, s_ago: float) -> TransactionDescription:
    """A transaction that is open, and when it began."""
    return TransactionDescription("Ongoing", pair, 60_000, (), now_ms() - int(s_ago * 1000))


def test_since_when_a_transaction_is_open_that_nobody_decided() -> None:
    """B27: from the coordinator; null where the row names it, and then the decision's age is there."""
    sides = Sides()
    pair = sides.start()
    sides.kafka.produce(pair)
    sides.kafka.shown = opened(pair, s_ago=90)
    report = look(sides)
    assert report.prepared_s == pytest.approx(90, abs=30)
    assert "open:     for 0:01:" in str(report)
    sides.kafka.shown = None
    sides.decide(pair)
    sides.kafka.shown = opened(pair, s_ago=90)
    report = look(sides)
    assert (report.prepared_s, report.in_doubt_s is not None) == (None, True)


def test_what_can_be_done_where_nobody_has_to_decide() -> None:
    """The job does it, or the command; where the driver lives, it is waited for first: both would stop it."""
    sides, _ = decided()
    found, options = look(sides), sides.recovery().diagnosis.options
    first, second = with_choices(found, options).remedies
    assert first.startswith("start the job")
    assert second.startswith("spark-2pc recover --transactional-id orders --bootstrap-server unused:9092 ")
    wait, stop, take_over = with_choices(replace(found, driver=LIVES), options).remedies
    assert wait.startswith("wait, and check again")
    assert stop.startswith("stop the job first")
    assert " --take-over  # stop the driver from here" in take_over
    settled = replace(found, settled=True)
    assert with_choices(settled, options) is settled


def did(sides: Sides) -> str:
    """What the newest line says, in words."""
    return str(sides.store.read_actions(ID, last=1)[0].detail["did"])


def test_how_kafka_had_ended_it_is_told() -> None:
    """B6, B7: committed, or aborted."""
    sides, pair = decided()
    sides.kafka.end(pair, commit=True)
    sides.decide(sides.start(), batch_id=1)
    sides.kafka.time_out()
    sides.start()
    assert told(sides) == [("note_done", 0), ("note_owed", 1)]
    assert did(sides).startswith("noted that Kafka is owed batch 1")


def test_an_abort_is_told_before_it_is_made() -> None:
    """A2: it is Kafka's alone. What was not told is not done."""
    sides = Sides()
    sides.kafka.produce(sides.start())
    seen: list[Any] = []
    sides.kafka.before = lambda name: seen.append((name, told(sides))) if name == "init" else None
    sides.start()
    assert seen[0] == ("init", [("abort", None)])
    assert did(sides).startswith("aborted the open transaction 0:0")


def test_without_the_line_nothing_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides()
    sides.kafka.produce(sides.start())

    def lost(*_: object) -> None:
        raise StateStoreError(operation="noting", detail="the database is gone")

    monkeypatch.setattr(sides.store, "note_action", lost)
    with pytest.raises(StateStoreError):
        sides.start()
    assert sides.kafka.aborted == []


def test_the_word_about_an_open_transaction_is_told() -> None:
    """C14: with either end; the commit that follows is a recovery's."""
    for batch_id, expected in ((None, [("open_transaction", None)]), (3, [("open_transaction", 3), ("commit", 3)])):
        sides = Sides()
        sides.kafka.produce(sides.kafka.init_producer_id().producer)
        word = OpenTransactionEnd(batch_id)
        sides.recovery(adopt=True, open_transaction=word).run(query_id=None, run_id=None)
        assert told(sides) == expected


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
