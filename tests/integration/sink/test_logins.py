"""A job whose tokens for Kafka and passwords for PostgreSQL expire while it runs, and the commands beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_2pc_sink.cli import exits, main
from spark_2pc_sink.sink.job.batch_size import SmallBatches
from spark_2pc_sink.testing import wait_until
from tests.conftest import or_skip
from tests.harness.changing_role import ChangingRole, changing_role
from tests.harness.streams import FileStream
from tests.harness.token_broker import TokenBroker
from tests.integration.sink.targets import SCHEMA, Target, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The fewest that Kafka's and our own bounds leave room for.
LIFETIME_S = 3
#: Of the first run, and of the second.
RUNS = (2, 1)


@pytest.fixture(scope="module")
def tokens(pytestconfig: pytest.Config) -> Iterator[TokenBroker]:
    """A broker that asks for tokens, which live for `LIFETIME_S`."""
    with or_skip(pytestconfig, TokenBroker) as broker:
        broker.issuer.lifetime_s = LIFETIME_S
        broker.create_topic("t", partitions=3)
        yield broker


@pytest.fixture
def role(database: str, tmp_path: Path) -> Iterator[ChangingRole]:
    """The job's role, whose password of now is in a file."""
    with changing_role(database) as made:
        made.write_to(tmp_path / "password")
        yield made


def after_each_batch(tokens: TokenBroker, role: ChangingRole) -> Callable[[Any], None]:
    """Let the tokens expire, and the password change under connections that are kept."""

    def on_batch(_report: object) -> None:
        end_s = time.monotonic() + LIFETIME_S
        wait_until(lambda: time.monotonic() > end_s, deadline_s=2 * LIFETIME_S, what="the end of a token's life")
        role.change()
        role.cut()

    return on_batch


@pytest.mark.thorough
def test_a_job_outlives_its_tokens_and_passwords(
    spark: SparkSession,
    tokens: TokenBroker,
    role: ChangingRole,
    tmp_path: Path,
    transactional_id: str,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver, which copies rows and forwards records; then a new run, which recovers; then commands."""
    monkeypatch.setattr(SmallBatches, "expected", False)
    stream, target = FileStream(spark, tmp_path, SCHEMA), Target(tokens.broker, database, transactional_id, "t")
    url, command = role.url.render_as_string(), f"cat {tmp_path / 'password'}"
    before = tokens.issuer.issued
    for batches in RUNS:
        for _ in range(batches):
            stream.add(rows_of(stream.files), partitions=2)
        sink = target.sink(
            kafka=tokens.client_properties(),
            database=url,
            password_command=command,
            on_batch=after_each_batch(tokens, role),
        )
        stream.run(sink)
        sink.close()
    target.check([row for batch in range(sum(RUNS)) for row in rows_of(batch)])
    # The driver needs one for each batch.
    assert tokens.issuer.issued - before >= sum(RUNS)

    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in tokens.client_properties().items()))
    kafka, named = ["--command-config", str(properties)], ["--transactional-id", transactional_id]
    postgres = ["--database", url, "--password-command", command]
    for words in (["status", *kafka], ["recover", *kafka], ["verify", *kafka, "--keys", "id"], ["history"]):
        assert main([words[0], *named, *postgres, *words[1:]]) == exits.EXIT_SETTLED
