"""The statements that an error about the dead-letter table names: the owner runs them, and the job starts."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, create_engine, make_url, text

from jdbc_state import SqlStateStore, StoreSettings
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.bad_rows.dead_letters import DeadLetters
from tests.harness.remedies import sql_in

ROLE = "job of dead letters"


def run(url: str | URL, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


@pytest.mark.parametrize(
    ("before", "table"),
    [
        ([], '"odd schema".letters'),
        (['CREATE SCHEMA "odd schema"'], '"odd schema".letters'),
        ([f'CREATE SCHEMA "odd schema"; GRANT USAGE ON SCHEMA "odd schema" TO "{ROLE}"'], '"odd schema".letters'),
    ],
    ids=["no schema", "a schema it may not use", "a schema it may use"],
)
def test_the_statements_of_the_error_are_enough(database: str, before: list[str], table: str) -> None:
    """The owner runs what the message says, and the same role then makes its start."""
    run(
        database,
        f'DROP ROLE IF EXISTS "{ROLE}"; CREATE ROLE "{ROLE}" LOGIN PASSWORD \'x\'',
        *before,
    )
    try:
        job = make_url(database).set(username=ROLE, password="x")
        options = SinkOptions.parse(
            transactional_id="letters",
            kafka={"bootstrap.servers": "unused:9092"},
            database=job.render_as_string(hide_password=False),
            topic="orders",
            table="public.orders",
            bad_rows="dead_letter",
            dead_letter_table=table,
        )
        store = SqlStateStore(options.database, StoreSettings(**options.store_settings()))
        letters = DeadLetters(options, store.database, "query")
        with pytest.raises(ConfigurationError) as refused:
            letters.prepare()
        run(database, *sql_in(refused.value.remedy))
        letters.prepare()
        store.close()
    finally:
        run(database, f'DROP SCHEMA IF EXISTS "odd schema" CASCADE; DROP OWNED BY "{ROLE}"; DROP ROLE "{ROLE}"')
