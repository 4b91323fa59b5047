"""The history of a sink: batches and actions in one line of time, from a store in memory."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock

import pytest

from jdbc_state import Decision, StateStore
from spark_2pc_sink import cli, history as from_outside
from spark_2pc_sink.cli import database as command, output
from spark_2pc_sink.recovery import api as module
from spark_2pc_sink.recovery.api import BatchEntry, HistoryReport, history, utc
from tests.harness.json_contract import read_output
from tests.unit.fakes.memory_store import MemoryStateStore

ID = "orders"
START = datetime(2026, 11, 24, 3, 0, tzinfo=timezone.utc)
DATABASE = "postgresql://h/d"


class Ticking(MemoryStateStore):
    """Each look at the clock is a second later."""

    def __init__(self) -> None:
        self.now = START
        super().__init__(clock=self._tick)
        self.prepare_schema()

    def _tick(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def take_over(store: StateStore, **changes: Any) -> int:
    claimant = {"cluster_id": "a", "query_id": "query-1", "run_id": "run-1", **changes}
    return store.claim(transactional_id=ID, **claimant).generation


def decide(store: StateStore, generation: int, batch_id: int) -> None:
    row = store.read(ID)
    assert row is not None
    offsets = {f"orders-{partition}": (batch_id, batch_id) for partition in range(5)}
    with store.deciding(ID, generation) as transaction:
        transaction.decide(
            Decision(
                prepared=f"5:{batch_id}",
                expected=row.prepared_transaction_state,
                batch_id=batch_id,
                row_count=2,
                record_count=3,
                digest="abc",
                kafka_offsets=offsets,
            )
        )


@pytest.fixture
def store() -> Ticking:
    """Two batches, a recovery of the second, one without records, and one that is given up."""
    made = Ticking()
    generation = take_over(made, layout={"table": "orders"})
    decide(made, generation, 0)
    made.mark_done(ID, generation, "5:1")
    decide(made, generation, 1)
    generation = take_over(made, query_id=None, run_id=None)
    made.mark_done(ID, generation, "5:2", action="commit", detail={"did": "committed 5:1"})
    made.take_empty_batch(ID, generation, 2, "5:1")
    did = {"did": "went on\nwithout 3", "batches": "3"}
    made.accept_loss(ID, generation, "5:9", batch_id=3, record_count=7, kafka_offsets={}, detail=did)
    return made


def read(store: StateStore, transactional_id: str | None = ID, **chosen: Any) -> HistoryReport:
    with mock.patch.object(module, "open_store", return_value=store):
        return history(database=DATABASE, transactional_id=transactional_id, **chosen)


def shown(report: HistoryReport) -> list[tuple[str, int | None]]:
    return [
        (entry.event if isinstance(entry, BatchEntry) else f"- {entry.action}", entry.batch_id)
        for entry in report.entries
    ]


EVERYTHING = [
    ("- claim", None),
    ("decided", 0),
    ("decided", 1),
    ("- claim", 1),
    ("- commit", 1),
    ("empty", 2),
    ("passed", 3),
    ("- accept_loss", 3),
]


def test_batches_and_actions_are_one_line_of_time(store: Ticking) -> None:
    """D2: the newest is last; a line of the history that tells a claim is told by the action."""
    report = read(store)
    assert shown(report) == EVERYTHING
    assert [entry.at for entry in report.entries] == sorted(entry.at for entry in report.entries)
    decided = report.entries[1]
    assert isinstance(decided, BatchEntry)
    assert (decided.at, decided.status, decided.row_count) == (decided.decided_at, "done", 2)


def test_entries_can_be_chosen(store: Ticking) -> None:
    assert shown(read(store, last=3)) == EVERYTHING[-3:]
    assert shown(read(store, actions=False)) == [each for each in EVERYTHING if each[0][0] != "-"]
    assert shown(read(store, batches=False)) == [each for each in EVERYTHING if each[0][0] == "-"]
    since = read(store).entries[4].at
    assert shown(read(store, since=since)) == EVERYTHING[4:]
    assert shown(read(store, since=store.now + timedelta(hours=1))) == []
    assert shown(read(store, "another")) == []


# --- the function and the command ------------------------------------------------------------------------------------


@pytest.fixture
def opened(store: Ticking, monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Called with the options for which a store is opened."""
    made = mock.Mock(return_value=store)
    monkeypatch.setattr(module, "open_store", made)
    return made


def test_the_function_needs_a_database_only(opened: mock.Mock) -> None:
    assert from_outside is history
    assert shown(history(database=DATABASE)) == EVERYTHING
    assert shown(history(database=DATABASE, transactional_id=ID, last=1, state_table="mine")) == EVERYTHING[-1:]
    assert [call.args[0].state_table for call in opened.call_args_list] == ["kafka_transaction_state", "mine"]
    assert len(history(database=DATABASE, since=START).entries) == len(EVERYTHING)


def test_a_line_for_people(store: Ticking, opened: mock.Mock, capsys: pytest.CaptureFixture[str]) -> None:
    """D2: who, when, why; of many partitions only some."""
    assert cli.main(["history", "--database", DATABASE]) == output.EXIT_SETTLED
    header, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    shown_columns = [name for name in command._COLUMNS if name not in ("TransactionalId", "Reason")]
    assert [cell.strip() for cell in header] == shown_columns == ["Time", "What", "Batch", "Who", "Detail"]
    cells = [[cell.strip() for cell in line] for line in lines]
    claimed, decided = read(store).entries[:2]
    assert isinstance(decided, BatchEntry)
    assert decided.settled_at is not None
    assert cells[0] == [
        utc(claimed.at, timespec="seconds"),
        "claim",
        "",
        "nobody@nowhere by test, role job",
        "generation 1",
    ]
    assert cells[1][1:3] == ["batch", "0"]
    assert cells[1][-1] == (
        f"decided, now done at {utc(decided.settled_at, timespec='seconds')}; 2 rows, 3 records; orders-0 0..0; "
        "orders-1 0..0; orders-2 0..0; and 2 more partitions"
    )
    assert cells[-1][-1] == "went on without 3"
    assert opened.call_args.args[0].database.endswith("//h/d")


def test_json_is_of_the_documented_form(store: Ticking, opened: mock.Mock, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history", "--database", DATABASE, "--json"]) == output.EXIT_SETTLED
    found = read_output(capsys.readouterr().out)["entries"]
    assert [each["kind"] for each in found] == ["batch" if name[0] != "-" else "action" for name, _ in EVERYTHING]
    assert found[0]["detail"]["layout"] == {"table": "orders"}
    assert found[1]["kafka_offsets"]["orders-4"] == [0, 0]
    assert found[1]["decided_at"] == found[1]["at"] == utc(read(store).entries[1].at)
    assert found[1]["at"].startswith("2026-11-24T03:00:0")
    assert opened.call_count == 1


def test_nothing_found_is_exit_code_4(opened: mock.Mock, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["history", "--database", DATABASE, "--transactional-id", "another"]
    assert cli.main(words) == output.EXIT_NOT_KNOWN
    assert capsys.readouterr().out == "no entries\n"
    assert cli.main([*words, "--json"]) == output.EXIT_NOT_KNOWN
    assert read_output(capsys.readouterr().out)["entries"] == []
    assert opened.call_count == 2


@pytest.mark.parametrize(
    ("time", "hour"),
    [("2026-11-24T03:00:05", 3), ("2026-11-24T03:00:05Z", 3), ("2026-11-24T05:00:05+02:00", 3)],
)
def test_a_time_is_in_utc_unless_it_says_else(
    opened: mock.Mock, capsys: pytest.CaptureFixture[str], time: str, hour: int
) -> None:
    words = ["history", "--database", DATABASE, "--since", time, "--actions-only", "--json"]
    assert cli.main(words) == output.EXIT_SETTLED
    first = read_output(capsys.readouterr().out)["entries"][0]
    assert (first["action"], datetime.fromisoformat(first["at"].replace("Z", "+00:00")).hour) == ("claim", hour)
    assert opened.call_count == 1
