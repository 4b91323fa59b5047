"""The dead-letter topic: it has what the dead-letter table has, exactly once, whatever happens to the driver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from spark_2pc_sink import VerifyReport, verify
from spark_2pc_sink.recipe.placement import Placement
from spark_2pc_sink.sink.records.record_side import canonical_json
from spark_2pc_sink.testing import TopicRecord, read_topic
from tests.integration.sink.test_bad_rows import Sides, sides

if TYPE_CHECKING:
    from tests.conftest import MakeTopic

__all__ = ["sides"]

TABLE = "CREATE TABLE target (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), amount int, parent int)"
_COLUMNS = "transactional_id, query_id, batch_id, identity, occurrences, output, reason, sqlstate"


@pytest.fixture
def letters(sides: Sides, topic: MakeTopic) -> str:
    """A topic for the letters of the sink."""
    name = topic(partitions=2)
    sides.options["dead_letter_topic"] = name
    return name


def read(sides: Sides, letters: str) -> list[TopicRecord]:
    return read_topic(sides.options["kafka"]["bootstrap.servers"], letters)


def compare(sides: Sides, letters: str) -> list[dict[str, Any]]:
    """The letters of the topic, which are those of the table."""
    records = read(sides, letters)
    told = [json.loads(record.value or b"") for record in records]
    columns = _COLUMNS.split(", ")
    in_table = sides.rows(f'SELECT {_COLUMNS}, "row" FROM kafka_transaction_state_dead_letters')
    assert sorted(([*(letter[name] for name in columns), letter["row"]] for letter in told), key=str) == sorted(
        map(list, in_table), key=str
    )
    assert [record.key for record in records] == [letter["identity"].encode() for letter in told]
    return told


def verified(sides: Sides) -> VerifyReport:
    names = ("transactional_id", "kafka", "database")
    return verify(**{name: sides.options[name] for name in names})


def test_the_topic_has_what_the_table_has(sides: Sides, letters: str) -> None:
    """A26: in the decision of their batch, counted in it, and a replay ends in the same split."""
    sides.execute(TABLE)
    sides.stream.add([(1, "bad", 1, 1), (2, "good", 1, 1), (2, "good", 1, 1), (3, "a\x00b", 1, 1)])
    sides.run()
    assert {letter["row"]["id"] for letter in compare(sides, letters)} == {1, 2, 3}
    told = verified(sides)
    assert (told.verdict, [each.letters for each in told.letters]) == ("same", [3]), str(told)
    [report] = sides.reports
    assert (report.row_count, report.record_count, report.bad_rows) == (1, 1 + 3, 3)
    assert report.outputs[f"DeadLetters({letters!r})"] == 3
    noted = "SELECT record_count, (SELECT count(*) FROM jsonb_object_keys(topic_ids::jsonb)) FROM "
    assert sides.rows(f"{noted} kafka_transaction_state_history WHERE batch_id = 0") == [(4, 2)]
    # As if the job had been killed before Spark recorded the batch.
    sides.stream.forget(0)
    sides.execute("ALTER TABLE target DROP CONSTRAINT target_name_check")
    sides.run()
    assert sides.reports[1].placement is Placement.SKIP
    assert len(compare(sides, letters)) == 3


def test_the_json_of_a_row_is_in_the_form_of_jsonb(database: str) -> None:
    """What PostgreSQL does to a JSON text changes nothing of a letter."""
    texts = ['{"bb":1,"a":[1.0E10,-0.0,0E5,0E-5,-1.50E1,1.7E300,1E-300,5e-324]}', '{"a":{"Ä":"\\u00e4\\n","":null}}']
    engine = sqlalchemy.create_engine(database, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        for text in texts:
            kept = connection.exec_driver_sql("SELECT CAST(CAST(%s AS jsonb) AS text)", (text,)).scalar()
            assert canonical_json(str(kept)) == canonical_json(text)
