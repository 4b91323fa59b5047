"""The command that remedies print: complete, with no secret, and as the command line reads it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recovery.recover_command import sink_flags

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
