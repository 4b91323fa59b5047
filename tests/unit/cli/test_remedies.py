"""Every remedy with a command, of every problem in the table: the command line takes it, and the first one is safe."""

from __future__ import annotations

import itertools
import re
import shlex
from typing import Any, Final, get_args

import pytest

from jdbc_state import StoreSettings
from jdbc_state.preparing import making, migration
from spark_2pc_sink.choices import TABLE, Facts, Symptom, remedies
from spark_2pc_sink.choices.choice import Fact, state_command
from spark_2pc_sink.cli import command_parser
from spark_2pc_sink.cli.options import given_options
from spark_2pc_sink.ids import TIMEOUT_NEVER_MS, TransactionState
from spark_2pc_sink.kafka.transaction_queries import OpenTransaction, TransactionDetails
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recovery.report import kafka_connection, sink_flags
from spark_2pc_sink.transactions.ending import end_hanging, end_known, with_cluster

OPTIONS = RecoveryOptions.parse(
    transactional_id="orders",
    kafka={
        "bootstrap.servers": "h:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "app",
        "sasl.password": "hidden",
    },
    database="postgresql://app:hidden@h/shop",
    state_schema="ops",
)
SETTINGS: Final = StoreSettings(schema_help=state_command)
#: What only a person knows, and an example of it: docs/command-line.md says what each stands for.
PLACEHOLDERS: Final = {
    "N": "4",
    "FIRST..LAST": "5..6",
    "FILE": "client.properties",
    "URL": "postgresql://h/shop",
    "ROLE": "job",
}
#: Commands that change nothing.
READ_ONLY: Final = ("verify", "status")
KNOWN: Final[tuple[frozenset[Fact], ...]] = (frozenset(), *(frozenset({fact}) for fact in get_args(Fact)))
OF_TABLE: Final = {
    remedies(problem, Facts(known=known, batch=batch, owners=("orders",)), sink_flags(OPTIONS))
    for problem, known, batch in itertools.product(TABLE, KNOWN, (4, None))
    # Its only choice needs no decision.
    if problem is not Symptom.LOST_ROW
}
#: Of each state of a transaction, with and without a time-out, of a sink's or another's.
OF_TRANSACTIONS: Final = {
    *(
        end_known(TransactionDetails(0, "orders", 7, 3, state.value, timeout_ms, 1, 1, ()), is_sink=is_sink)
        for state, timeout_ms, is_sink in itertools.product(
            TransactionState, (60_000, TIMEOUT_NEVER_MS), (True, False, None)
        )
    ),
    end_hanging(OpenTransaction("orders", 0, 7, 3, -1, 5), sink="orders"),
}
CLUSTER: Final = {with_cluster(each, kafka_connection(OPTIONS.kafka)) for each in OF_TRANSACTIONS}
ALL: Final = sorted(each for each in OF_TABLE | CLUSTER if each)


@pytest.mark.parametrize("remedy", [making(SETTINGS), migration(SETTINGS, role="owner", where="h/shop")])
def test_the_commands_about_tables_are_taken_too(remedy: str) -> None:
    """Whole lines, as those about sinks; a role is for a person to name."""
    (words,) = commands((remedy,))
    filled = [PLACEHOLDERS.get(word, word) for word in words[1:]]
    assert callable(command_parser(filled).parse_args(filled).run)
    assert ("changes nothing" in remedy) == (words[2] == "ddl")


def commands(lines: tuple[str, ...]) -> list[list[str]]:
    """The words of each command among them, as a shell that knows comments splits them."""
    return [shlex.split(line, comments=True) for line in lines if line.startswith("spark-2pc ")]


@pytest.mark.parametrize("lines", ALL, ids=range(len(ALL)))
def test_each_command_is_one_that_the_command_line_takes(lines: tuple[str, ...]) -> None:
    """As printed, but for what only a person knows; and its options do not contradict each other."""
    for words in commands(lines):
        filled = [PLACEHOLDERS.get(word, word) for word in words[1:]]
        assert not [word for word in filled if re.fullmatch(r"[A-Z][A-Z_.]+", word)], words
        given = command_parser(filled).parse_args(filled)
        assert callable(given.run)
        assert "orders" in (getattr(given, "transactional_id", None), getattr(given, "topic", None))
        assert given.bootstrap_server
        assert given.database or not given.database_required
        if words[1] == "recover":
            options: dict[str, Any] = given_options(given)
            RecoveryOptions.parse(kafka={"bootstrap.servers": "h:9092"}, **options)


@pytest.mark.parametrize("lines", ALL, ids=range(len(ALL)))
def test_a_remedy_is_a_sentence_or_a_whole_command_that_says_its_change(lines: tuple[str, ...]) -> None:
    """No command hides in a sentence, where nobody could paste it; and no secret is in one."""
    for shown in lines:
        command, comment, change = shown.partition("  # ")
        assert "spark-2pc " not in (change if comment else shown)
        assert bool(comment) == command.startswith("spark-2pc ")
        assert not comment or len(change) > len("changes nothing")
        assert "hidden" not in shown


@pytest.mark.parametrize("lines", ALL, ids=range(len(ALL)))
def test_the_first_remedy_changes_nothing(lines: tuple[str, ...]) -> None:
    """It is a sentence for a person, or a command that only looks; what looks never stands behind what changes."""
    changing = [each[1] not in READ_ONLY for each in commands(lines)]
    assert not lines[0].startswith("spark-2pc ") or commands(lines)[0][1] in READ_ONLY
    assert changing == sorted(changing)
    shown = [line for line in lines if line.startswith("spark-2pc ")]
    for words, line in zip(commands(lines), shown, strict=True):
        assert ("changes nothing" in line) == (words[1] in READ_ONLY)
