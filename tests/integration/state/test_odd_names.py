"""Names that only quotes allow: every statement of the store takes them as they are."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

import pytest

from jdbc_state import SqlStateStore, ddl
from spark_2pc_sink.errors import CommitUnknownError
from tests.integration.state.state_stores import FIRST, ID, claim, reach, settings, sql_store
from tests.integration.state.test_claims import session

#: What means something to psycopg2, to SQLAlchemy, to LIKE, to format strings, or to SQL.
ODD = "%s %(name)s 50%% :name {0} \\ \" ' ; -- _ é"
NAMES = {"state_schema": f"sch {ODD}", "state_table": f"st {ODD}", "history_table": f"hi {ODD}"}
#: Of the whole server: a name of its own.
ROLE = f"role %s %(x)s {secrets.token_hex(4)}"


def table(name: str) -> str:
    schema, name = (part.replace('"', '""') for part in (NAMES["state_schema"], name))
    return f'"{schema}"."{name}"'


def test_a_store_with_odd_names_does_everything(database: str) -> None:
    """C5: rows, history, actions and records are where the options say."""
    with sql_store(database, keep_records=True, **NAMES) as store:
        row = reach(store, "done")
        store.note_action(ID, row.generation, "abort", {"did": "nothing"})
        assert [line.event for line in store.read_history(ID, last=9)] == ["decided", "claimed"]
        assert [line.action for line in store.read_actions(ID, last=9)][-1] == "claim"
        assert store.read_kept(ID) is None
        survey = store.survey()
        assert (survey.table_exists, survey.drivers[ID].alive) == (True, True)
        report = store.check_schema()
        assert (report.ready, report.there) == (True, True)
        assert report.lines[0].startswith(f"{table(NAMES['state_table'])}: version 2")


def test_tables_of_an_earlier_version_are_migrated_under_odd_names(database: str) -> None:
    """C15: and what is said by hand is SQL that the server takes."""
    names = settings(**NAMES)
    with session(database) as cursor:
        cursor.execute(f'CREATE ROLE "{ROLE}"; {ddl(names, role=ROLE)}')
        state, history = table(names.state_table), table(names.history_table)
        cursor.execute(f"ALTER TABLE {state} DROP COLUMN topic_ids, DROP COLUMN decision; DROP TABLE {history}")
        cursor.connection.commit()
        store = SqlStateStore(database, names)
        assert store.migrate()[:2] == [f"added columns topic_ids, decision to {state}", f"created {history}"]
        assert store.check_schema(ROLE).ready
        assert claim(store).generation == 1
        store.close()
        cursor.execute(f'DROP OWNED BY "{ROLE}"; DROP ROLE "{ROLE}"')
        cursor.connection.commit()


def test_an_older_driver_with_odd_names_is_ended(database: str) -> None:
    """C2: the sessions of older claims are found by their locks on the table."""
    with sql_store(database, **NAMES) as store, sql_store(database, **NAMES) as newer, ExitStack() as deciding:
        row = claim(store)
        transaction = deciding.enter_context(store.deciding(ID, row.generation))
        transaction.decide(FIRST)
        assert claim(newer).status == "none"
        with pytest.raises(CommitUnknownError):
            deciding.close()
