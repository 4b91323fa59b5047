"""The command that remedies print: complete, with no secret, and as the command line reads it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import ProducerIdAndEpoch
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recovery.recover_command import sink_flags
from spark_2pc_sink.recovery.recovery import Recovery
from tests.harness.halts import halts
from tests.unit.recovery.test_recovery import Sides

SIDES: dict[str, Any] = {
    "transactional_id": "orders",
    "kafka": {"bootstrap.servers": "a:1,b:2"},
    "database": "postgresql+psycopg2://app:secret@h:5432/d?sslpassword=hidden",
}


def command(**options: Any) -> str:
    return f"spark-2pc recover {sink_flags(RecoveryOptions.parse(**{**SIDES, **options}))}"


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


def test_every_halt_of_a_sink_prints_it() -> None:
    """D3: those of recovery, with the report of what it found; those of the driver; and the plan of a look."""
    sides = Sides()
    sides.decide(sides.start())
    sides.kafka.end(ProducerIdAndEpoch(0, 0), commit=True)
    sides.kafka.init_producer_id()
    sides.kafka.lose_markers()
    recovery = Recovery(
        RecoveryOptions.parse(**SIDES, settle_deadline_ms=5_000),
        kafka=sides.kafka,
        store=sides.store,
        clock=sides.clock,
    )
    drop = f"{command()} --batch 0 --drop  # "
    with halts(HaltCause.OUTCOME_LOST) as halted:
        recovery.run(query_id=None, run_id=None)
    assert halted.value.remedies[-1].startswith(drop)
    report = halted.value.report
    assert (report.cause, report.row.status, report.settled) == (HaltCause.OUTCOME_LOST, "decided", False)
    assert report.remedies == halted.value.remedies == recovery.diagnosis.dry_run().remedies
    assert recovery.explain(halted.value) is halted.value
    bare = replace(halted.value, remedies=(), report=None)
    assert bare.remedies[-1].startswith("spark-2pc recover --transactional-id orders --batch 0 --drop  # ")
    explained = recovery.explain(bare)
    assert explained.remedies == explained.report.remedies == halted.value.remedies
    assert (explained.report.cause, explained.report.settled) == (HaltCause.OUTCOME_LOST, False)
