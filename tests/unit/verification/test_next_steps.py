"""What a person is told to do next."""

from __future__ import annotations

import pytest

from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.verification.next_steps import Commands, next_steps
from spark_2pc_sink.verification.report import Difference, DifferenceKind, NotChecked, VerifyReport

OPTIONS = RecoveryOptions.parse(
    transactional_id="my orders",
    kafka={"bootstrap.servers": "h:1,i:2"},
    database="postgresql://ops:secret@db/shop",
    state_schema="ops",
)
SHAPE = {"table": 'public."Orders"', "mode": "upsert", "keys": ["id", "line"], "order_by": None}
COMMANDS = Commands.of(OPTIONS, SHAPE)
SIDES = (
    "--transactional-id 'my orders' --bootstrap-server h:1,i:2 --database postgresql://ops@db/shop --state-schema ops"
)


def report(*kinds: DifferenceKind, **fields: object) -> VerifyReport:
    return VerifyReport(
        transactional_id="my orders",
        **{
            "verdict": "different",
            "counts": dict.fromkeys(kinds, 1),
            "differences": tuple(
                Difference(kind=kind, text="x", topic="t", partition=2, offset=5 if kind == "stranger" else None)
                for kind in kinds
            ),
            **fields,
        },  # type: ignore[arg-type]
    )


def test_commands_are_complete_and_have_no_password() -> None:
    assert COMMANDS.status == f"spark-2pc status {SIDES}"
    shape = """--table 'public."Orders"' --mode upsert --keys id,line"""
    assert COMMANDS.verify == f"spark-2pc verify {SIDES} {shape}"
    assert COMMANDS.psql == "psql postgresql://ops@db/shop -v ON_ERROR_STOP=1"
    assert "--command-config" not in COMMANDS.console_producer("t", "reader")


def test_brokers_that_want_a_login_get_the_flag_for_its_file() -> None:
    secured = {"bootstrap.servers": "h:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    options = RecoveryOptions.parse(
        transactional_id="t",
        kafka={**secured, "sasl.username": "u", "sasl.password": "secret"},
        database="postgresql://h/d",
    )
    commands = Commands.of(options, {})
    for command in (commands.console_producer("t", "reader"), commands.console_consumer("t", 0, 5), commands.verify):
        assert "--command-config FILE" in command
        assert "secret" not in command


def test_equal_sides_ask_for_nothing() -> None:
    assert next_steps(report(verdict="same"), COMMANDS) == ()


def test_a_sink_that_is_not_known_is_looked_for() -> None:
    (step,) = next_steps(report(verdict="inconclusive", known=False), COMMANDS)
    assert step.endswith(COMMANDS.status)


def test_what_was_not_checked_has_its_reason_and_no_command() -> None:
    found = report(verdict="inconclusive", not_checked=(NotChecked("the table", "it has no column of a record"),))
    assert next_steps(found, COMMANDS) == ()


@pytest.mark.parametrize("kind", ["missing_in_kafka", "missing_in_table", "topic_remade", "topic_deleted", "truncated"])
def test_what_a_side_lacks_can_be_written_to_files(kind: DifferenceKind) -> None:
    (step,) = next_steps(report(kind), COMMANDS)
    assert step.endswith(f"{COMMANDS.verify} --write-missing DIR")


def test_files_that_are_written_are_to_be_read() -> None:
    (step,) = next_steps(report("missing_in_table", written=("files/a", "files/APPLY.md")), COMMANDS)
    assert "files/APPLY.md" in step


def test_a_stranger_is_to_be_looked_at() -> None:
    (step,) = next_steps(report("stranger"), COMMANDS)
    assert "kafka-console-consumer.sh --bootstrap-server h:1,i:2 --topic t --partition 2 --offset 5" in step


def test_a_database_that_is_behind_explains_the_rest() -> None:
    steps = next_steps(report("missing_in_table", "gap"), COMMANDS)
    assert [COMMANDS.status in step for step in steps] == [True, False]
