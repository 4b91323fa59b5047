"""Each table of a sink with several outputs against its topic, and the dead letters of topic and table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_2pc_sink import Records, Rows, VerifyReport
from tests.integration.verification.written_sides import Sent, Sides, WrittenOutputs

LINE = "explode(lines) AS line"
TABLES = (
    "DROP TABLE target",
    "CREATE TABLE orders (id bigint PRIMARY KEY, name text)",
    "CREATE TABLE lines (order_id bigint, sku text, n int, again int)",
    "CREATE TABLE names (name text)",
    "CREATE TABLE paid (id bigint)",
)
TOLD = ("orders", "lines", "names")
COUNTS = {"orders": 3, "lines": 3, "names": 3, "paid": 2}


@pytest.fixture
def shop(sides: Sides, topic: Callable[..., str]) -> WrittenOutputs:
    """Three topics and four tables; the last has a condition that no topic has."""
    for statement in TABLES:
        sides.sql(statement)
    orders, lines, names = sides.topic, topic(), topic()
    line_columns = {"order_id": "id", "sku": "line.sku", "n": "line.n", "again": "`line`.n"}
    return WrittenOutputs(
        sides,
        [
            Records(orders, key="id"),
            Records(lines, rows=LINE, key="line.sku", value="to_json(struct(id, line.*))"),
            # The same rows as those of the first topic: of the two, the value decides which table it tells.
            Records(names, value="name"),
            Rows("orders", mode="upsert", keys=["id"]),
            Rows("lines", rows=LINE, columns=line_columns),
            Rows("names", columns={"name": "name"}),
            Rows("paid", where="paid", columns={"id": "id"}),
        ],
    )


def topics_of(shop: WrittenOutputs) -> list[str]:
    return [str(output.topic) for output in shop.writes if isinstance(output, Records)]


def write(shop: WrittenOutputs, first: int = 0, *, committed: bool = True) -> None:
    """A batch of three orders, of which two are paid."""
    orders, lines, names = topics_of(shop)
    ids = range(first, first + 3)
    sent: Sent = {
        orders: [(str(n), {"id": n, "name": f"n{n}", "lines": [{"sku": f"s{n}", "n": n}]}) for n in ids],
        lines: [(f"s{n}", {"id": n, "sku": f"s{n}", "n": n}) for n in ids],
        names: [(None, f"n{n}") for n in ids],
    }
    between = f"generate_series({first}, {first + 2}) AS n"
    shop.write(
        sent,
        f"INSERT INTO orders SELECT n, 'n' || n FROM {between}",
        f"INSERT INTO lines SELECT n, 's' || n, n, n FROM {between}",
        f"INSERT INTO names SELECT 'n' || n FROM {between}",
        f"INSERT INTO paid SELECT n FROM {between} WHERE mod(n, 3) > 0",
        rows=COUNTS,
        committed=committed,
    )


def named(report: VerifyReport) -> set[tuple[str, str | None, str | None]]:
    return {(each.kind, each.table, each.key) for each in report.differences}


def reasons(report: VerifyReport) -> dict[str, str]:
    return {part.what: part.why for part in report.not_checked}


def test_every_table_has_its_topic(shop: WrittenOutputs, tmp_path: Path) -> None:
    write(shop)
    write(shop, 10)
    report = shop.verify()
    orders, lines, names = topics_of(shop)
    assert [(each.table, each.topics, each.rows, each.columns) for each in report.tables] == [
        ("orders", (orders,), 6, ("id", "name")),
        ("lines", (lines,), 6, ("order_id", "sku", "n", "again")),
        ("names", (names,), 6, ("name",)),
        ("paid", (), None, ()),
    ], str(report)
    # No topic has the rows of the last: their number is what the history tells, and nobody should rely on it alone.
    assert (report.verdict, report.counts, report.records) == ("inconclusive", {}, 18), str(report)
    assert "where='paid'" in reasons(report)["table paid"]
    assert "paid" in str(report)
    alone = shop.verify(table="lines")
    assert (alone.verdict, alone.rows) == ("same", 6), str(alone)

    for change in (
        "DELETE FROM orders WHERE id = 1",
        "UPDATE orders SET name = 'other' WHERE id = 11",
        "UPDATE lines SET n = 7 WHERE order_id = 12",
        "INSERT INTO lines VALUES (99, 's99', 9, 9)",
        "DELETE FROM names WHERE name = 'n2'",
        "DELETE FROM paid WHERE id = 2",
    ):
        shop.sides.sql(change)
    report = shop.verify(write_missing=tmp_path / "files")
    assert named(report) >= {
        ("missing_in_table", "orders", "id=1"),
        ("differing", "orders", "id=11"),
        ("missing_in_table", "lines", "key s12"),
        ("row_count", "paid", None),
    }, str(report)
    assert report.counts == {"missing_in_table": 3, "differing": 1, "missing_in_kafka": 2, "row_count": 1}, str(report)
    written = {str(Path(path).relative_to(tmp_path / "files")) for path in report.written}
    assert {"orders/APPLY.md", "orders/rows_missing_in_table.copy", "names/rows_missing_in_table.copy"} <= written
    # The record has other field names than the table, so that no file of records can be made of its rows.
    assert "lines/records_for_another_producer.jsonl" in written
    assert {table for _, table, _ in named(shop.verify(batch=0))} == {"orders", "names"}


def test_an_open_transaction_is_compared_with_every_table_that_its_topics_tell(shop: WrittenOutputs) -> None:
    """Whether to commit or abort it by hand: all tables have its rows, none has, or some have."""
    write(shop)
    write(shop, 10, committed=False)
    orders, lines, names = topics_of(shop)
    for change, share, found in (
        ("SELECT 1", "all", {"orders": 3, "lines": 3, "names": 3}),
        ("DELETE FROM lines WHERE order_id >= 10", "some", {"orders": 3, "lines": 0, "names": 3}),
        ("DELETE FROM orders WHERE id >= 10; DELETE FROM names WHERE name LIKE 'n1_'", "none", dict.fromkeys(TOLD, 0)),
    ):
        shop.sides.sql(change.replace("%", "%%"))
        report = shop.verify(open_transaction=True, wait_ms=100)
        opened = report.open_transaction
        assert opened is not None
        assert (opened.share, opened.records, opened.in_table) == (share, 9, sum(found.values())), str(report)
        assert {each.table: each.in_table for each in opened.tables} == {**found, "paid": None}, str(report)
        assert [each.topics for each in opened.tables] == [(orders,), (lines,), (names,), ()]
        assert report.verdict == ("same" if share == "all" else "different")
        assert (("missing_in_table", "lines", "key s12") in named(report)) is (found["lines"] == 0), str(report)
        assert json.loads(json.dumps(report.as_json()))["open_transaction"]["share"] == share
    alone = shop.verify(open_transaction=True, table="names", wait_ms=100).open_transaction
    assert alone is not None
    assert (alone.share, alone.records) == ("none", 3)
    shop.sides.open_producers.pop().abort_transaction(30)
    report = shop.verify(open_transaction=True, wait_ms=100)
    assert (report.verdict, report.open_transaction) == ("inconclusive", None)


def test_tables_alone_and_topics_alone(shop: WrittenOutputs) -> None:
    shop.writes = [Rows("paid"), Rows("orders", mode="upsert", keys=["id"])]
    shop.write({}, "INSERT INTO paid VALUES (1), (2)", rows={"paid": 2, "orders": 0})
    report = shop.verify()
    assert (report.verdict, report.counts, report.rows) == ("inconclusive", {}, None), str(report)
    assert "no topic has the records of its rows" in reasons(report)["table paid"]
    assert "mode='upsert'" in reasons(report)["the number of its rows (table orders)"]
    shop.sides.sql("INSERT INTO paid VALUES (3)")
    assert named(shop.verify()) == {("row_count", "paid", None)}

    orders = shop.sides.topic
    other = WrittenOutputs(Sides(shop.sides.broker, shop.sides.database, orders, "topics-alone"), [Records(orders)])
    other.write({orders: [(None, {"id": 1})]})
    report = other.verify()
    assert (report.verdict, report.rows, report.tables) == ("same", None, ()), str(report)


def test_a_table_of_two_sinks(shop: WrittenOutputs, topic: Callable[..., str]) -> None:
    sides, orders, second = shop.sides, shop.sides.topic, topic()
    one = WrittenOutputs(sides, [Records(orders), Rows("names")])
    two: list[Records | Rows] = [Records(second), Rows("public.names")]
    other = WrittenOutputs(Sides(sides.broker, sides.database, second, "second-sink"), two)
    one.write({orders: [(None, {"name": "a"})]}, "INSERT INTO names VALUES ('a')")
    other.write({second: [(None, {"name": "b"})]}, "INSERT INTO names VALUES ('b')")
    for sink in (one, other):
        report = sink.verify()
        assert (report.verdict, report.rows) == ("same", 1), str(report)
    assert "second-sink writes the table too" in reasons(one.verify())["rows without a record (table names)"]
    sides.sql("DELETE FROM names WHERE name = 'b'")
    assert (one.verify().counts, other.verify().counts) == ({}, {"missing_in_table": 1})


def one_pair(shop: WrittenOutputs, **rows: Any) -> WrittenOutputs:
    shop.writes = [Records(shop.sides.topic, key="id"), Rows("orders", keys=["id"], **rows)]
    return shop


def order(number: int, name: str | None) -> tuple[str, Any]:
    return str(number), None if name is None else {"id": number, "name": name}


def test_rows_that_stay_as_they_are(shop: WrittenOutputs) -> None:
    sink = one_pair(shop, mode="insert_ignore")
    topic, ignore = shop.sides.topic, "ON CONFLICT DO NOTHING"
    sink.write({topic: [order(1, "first")]}, f"INSERT INTO orders VALUES (1, 'first') {ignore}")
    again = f"INSERT INTO orders VALUES (1, 'again'), (2, 'new') {ignore}"
    sink.write({topic: [order(1, "again"), order(2, "new")]}, again)
    report = sink.verify()
    assert (report.verdict, report.rows) == ("same", 2), str(report)
    assert "the first record of a key counts" in reasons(sink.verify(last=1))["table orders"]
    shop.sides.sql("UPDATE orders SET name = 'again' WHERE id = 1")
    shop.sides.sql("DELETE FROM orders WHERE id = 2")
    found = {("differing", "orders", "id=1"), ("missing_in_table", "orders", "id=2")}
    assert named(sink.verify()) == found


def test_tombstones_of_the_topic_that_has_them(shop: WrittenOutputs, topic: Callable[..., str]) -> None:
    """Of two topics with the same rows, the one with tombstones tells which rows were deleted."""
    plain, compacted = shop.sides.topic, topic()
    shop.writes = [
        Records(plain, key="id"),
        Records(compacted, key="id", tombstone_when="name IS NULL"),
        Rows("orders", mode="upsert", keys=["id"], delete_when="name IS NULL"),
    ]
    both = [order(1, "a"), order(2, "b")]
    shop.write({plain: both, compacted: both}, "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    shop.write({plain: [("1", {"id": 1})], compacted: [order(1, None)]}, "DELETE FROM orders WHERE id = 1")
    report = shop.verify()
    assert [each.topics for each in report.tables] == [(compacted,)], str(report)
    assert report.verdict == "same", str(report)
    shop.sides.sql("INSERT INTO orders VALUES (1, 'back')")
    assert named(shop.verify()) == {("differing", "orders", "id=1")}


TABLE = '"public"."letters"'
DDL = (
    "CREATE TABLE letters (transactional_id text, query_id text, batch_id bigint, identity text, occurrences bigint, "
    "output text, reason text, sqlstate text, row jsonb, "
    "PRIMARY KEY (transactional_id, query_id, batch_id, identity))"
)


@pytest.fixture
def letters(sides: Sides, topic: Callable[..., str]) -> WrittenOutputs:
    """A topic and a table, and a topic of dead letters."""
    sides.sql(DDL)
    records, rows = Records(sides.topic, key="id"), Rows("target", columns={"id": "id", "name": "name"})
    return WrittenOutputs(sides, [records, rows], dead_letters=(topic(), TABLE))


def letter(sides: Sides, identity: str, **changed: Any) -> dict[str, Any]:
    told = {"transactional_id": sides.transactional_id, "query_id": "query", "batch_id": sides.batches}
    told |= {"identity": identity, "occurrences": 1, "output": "table target", "reason": "why", "sqlstate": "23514"}
    return {**told, "row": {"id": -1, "name": "bad"}, **changed}


def write_letters(written: WrittenOutputs, *identities: str, committed: bool = True) -> None:
    """A batch of one good row, and of bad ones."""
    sides = written.sides
    assert written.dead_letters is not None
    number, told = sides.batches, [letter(sides, identity) for identity in identities]
    sent = {
        sides.topic: [(str(number), {"id": number, "name": "n"})],
        written.dead_letters[0]: [(each["identity"], each) for each in told],
    }
    written.write(
        sent,
        f"INSERT INTO target (id, name) VALUES ({number}, 'n')",
        *map(_insert, told),
        rows={"target": 1},
        committed=committed,
    )


def found(report: VerifyReport) -> list[tuple[str, str | None, str | None]]:
    return [(each.kind, each.table, each.key) for each in report.differences]


def test_letters_of_both_sides_are_compared(letters: WrittenOutputs) -> None:
    """And their topic is no topic of a table's rows."""
    sql = letters.sides.sql
    write_letters(letters, "aa", "bb", "cc")
    write_letters(letters)
    write_letters(letters, "aa")
    report = letters.verify()
    assert (report.verdict, report.rows, found(report)) == ("same", 3, []), str(report)
    [told] = report.letters
    assert (told.letters, told.table) == (4, TABLE)
    assert json.loads(json.dumps(report.as_json()))["letters"][0]["letters"] == 4
    assert [each.letters for each in letters.verify(batch=0).letters] == [3]
    sql("UPDATE letters SET sqlstate = '23505' WHERE identity = 'aa' AND batch_id = 0")
    sql("UPDATE letters SET identity = 'dd' WHERE identity = 'bb'")
    report = letters.verify()
    assert report.verdict == "different"
    assert sorted(found(report)) == [
        ("differing", TABLE, "identity=aa"),
        ("missing_in_kafka", TABLE, "identity=dd"),
        ("missing_in_table", TABLE, "identity=bb"),
    ]
    # A person may delete letters, but not those of the newest batch, which the sink needs.
    sql("DELETE FROM letters WHERE batch_id = 0")
    report = letters.verify()
    assert (report.verdict, found(report)) == ("same", [])
    assert "the dead letters of batch 0" in {part.what for part in report.not_checked}
    sql("DELETE FROM letters")
    assert found(letters.verify()) == [("missing_in_table", TABLE, "identity=aa")]
    sql("DROP TABLE letters")
    report = letters.verify()
    assert (report.differences, report.letters) == ((), ())
    assert any("does not exist, or this role cannot read it" in part.why for part in report.not_checked)


def test_the_letters_of_an_open_transaction_are_looked_for_in_the_table(letters: WrittenOutputs) -> None:
    """A26: who commits it by hand is told whether the database has decided it, also where it has letters alone."""
    letters.writes = [Rows("target", columns={"id": "id", "name": "name"})]
    letters.start([*letters.writes])
    sides, (topic, _) = letters.sides, letters.dead_letters or ("", "")
    told = letter(sides, "aa")
    letters.write({topic: [("aa", told)]}, committed=False)
    for statement, share in (("SELECT 1", "none"), (_insert(told), "all")):
        sides.sql(statement)
        report = letters.verify(open_transaction=True, wait_ms=100)
        assert report.open_transaction is not None
        assert (report.open_transaction.share, report.open_transaction.records) == (share, 1), str(report)


def _insert(told: dict[str, Any]) -> str:
    return f"INSERT INTO letters SELECT * FROM jsonb_populate_record(NULL::letters, '{json.dumps(told)}')"
