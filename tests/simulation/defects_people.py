"""Defects in what keeps people from ending green over wrong data, and in what becomes of bad rows and their letters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from jdbc_state import DECIDED, OWED, history
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.recipe.lost_batches import LostBatches
from spark_2pc_sink.recipe.resolve import Halt, Resolution, RowStatus, RowView, Verdict
from spark_2pc_sink.recovery import diagnosis, recovery
from spark_2pc_sink.recovery.diagnosis import LostCommits
from spark_2pc_sink.recovery.recovery import Recovery
from spark_2pc_sink.recovery.report import view_of
from spark_2pc_sink.sink.driver import batch_driver
from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from tests.simulation import faults, people
from tests.simulation.broker import PARTITIONS, SimBroker
from tests.simulation.drivers import SimWork, digest_of
from tests.simulation.explore import Mutants, calling, returning
from tests.unit.fakes.memory_store import MemoryDecidingTransaction, MemoryStateStore

_PEOPLE: Final = Mutants("people-tv2")
_BACKUPS: Final = tuple(f"{people.BACKUP}{number}" for number in range(people.BACKUPS_MAX))
_CHECKS: Final = ((diagnosis, "find_lost_records"), (batch_driver, "find_lost_records"))


# --- the history -------------------------------------------------------------------------------------------------


@_PEOPLE.of(
    "a decision leaves no line in the history", (MemoryStateStore, "_write"), kinds=(faults.CRASH, people.DELETE_ROW)
)
def _no_line_of_a_decision(original: Any, self: Any, row: Any, event: str, *figures: Any) -> None:
    before = dict(self._lines)
    original(self, row, event, *figures)
    if row.status == DECIDED:
        self._lines = before


@_PEOPLE.of(
    "the line of a decision is written before COMMIT",
    (MemoryDecidingTransaction, "_write"),
    kinds=(faults.CRASH, people.DELETE_ROW),
)
def _line_before_commit(original: Any, self: Any, decision: Any) -> None:
    original(self, decision)
    before = dict(self._store._rows)
    self._store._write(self.pending, history.DECIDED)
    self._store._rows = before


@_PEOPLE.of("a lost row is not made again", (MemoryStateStore, "judged_row"))
def _only_the_row(_original: Any, self: Any, claimant: Any) -> Any:
    return self._rows.get(claimant.transactional_id)


@_PEOPLE.of(
    "a row without a history counts for nothing",
    (MemoryStateStore, "judged_row"),
    kinds=(faults.CRASH, people.DELETE_HISTORY),
)
def _from_the_history_alone(_original: Any, self: Any, claimant: Any) -> Any:
    lines = self._lines.get(claimant.transactional_id)
    return lines[-1].row if lines else None


@_PEOPLE.of(
    "a word on the open transaction counts more than the row",
    (diagnosis, "apply_operator_choice"),
    kinds=(faults.CRASH, people.RECOVER_COMMIT_OPEN),
)
def _a_word_counts_more_than_the_row(original: Any, row: Any, kafka: Any, found: Any, word: Any) -> Any:
    return original(RowView(RowStatus.NONE) if word is not None else row, kafka, found, word)


@_PEOPLE.of(
    "adopt aborts a transaction whose decision is lost",
    (diagnosis, "resolve"),
    kinds=(people.DELETE_STATE, people.ADOPT, people.ADOPT_JOB, people.ADOPT_LEFT_ON),
)
def _adopt_ends_it(original: Any, row: Any, kafka: Any, *, adopt: bool = False, **named: Any) -> Resolution | Halt:
    found: Resolution | Halt = original(row, kafka, adopt=adopt, **named)
    asks = isinstance(found, Halt) and found.cause is HaltCause.OPEN_TRANSACTION
    return Resolution(Verdict.ABORT, "adopted") if asks and adopt else found


# --- the topics --------------------------------------------------------------------------------------------------


@_PEOPLE.of("topic ids are not compared", *_CHECKS, kinds=(people.REFILL_TOPIC,))
def _by_offsets_alone(original: Any, written: Any, logs: Any, **named: Any) -> Any:
    return original(replace(written, topic_ids={}), logs, **named)


@_PEOPLE.of("a topic that is not there lacks nothing", *_CHECKS, kinds=(people.DELETE_TOPIC,))
def _a_missing_topic_lacks_nothing(original: Any, written: Any, logs: Any, **named: Any) -> Any:
    there = {each: at for each, at in written.offsets.items() if each.topic in logs.topic_ids}
    return original(replace(written, offsets=there), logs, **named)


_PEOPLE.add("a driver does not look for its records", (batch_driver, "find_lost_records", returning(None)))


@_PEOPLE.of(
    "a recovery does not look for the records",
    (diagnosis, "check_kept"),
    (recovery, "check_kept"),
    kinds=(faults.CRASH, people.REMAKE_TOPIC),
)
def _not_looked_for(_original: Any, _kafka: Any, _row: Any, resolution: Any) -> Any:
    return resolution


_PEOPLE.add(
    "a recovery does not look again after its commit",
    (recovery, "check_kept", calling(_not_looked_for)),
    kinds=(faults.CRASH, people.REMAKE_TOPIC),
)


# --- what a person has named -------------------------------------------------------------------------------------


_PEOPLE.add(
    "the logs are not asked for what the coordinator has forgotten",
    (LostCommits, "shows", returning(False)),
    kinds=(faults.CRASH, *_BACKUPS),
)
_PEOPLE.add(
    "any range of lost batches is accepted",
    (LostBatches, "check", returning(None)),
    kinds=(*_BACKUPS, people.RECOVER_ACCEPT_LOSS),
)


@_PEOPLE.of(
    "batches are passed over that nobody has", (LostCommits, "pass_over_unread"), kinds=(people.RECOVER_ACCEPT_LOSS,)
)
def _also_where_nothing_is_lost(_original: Any, self: Any, row: Any, actions: Any) -> Any:
    named = self.accepted
    return self.pass_over(row, self.look(row), named, actions) if named is not None and len(named) else row


@_PEOPLE.of(
    "a batch that Kafka is owed is given up as one that the database has lost",
    (LostCommits, "pass_over_unread"),
    faults=3,
    kinds=(faults.FORCE_TERMINATE, people.DELETE_TOPIC, people.RECOVER_ACCEPT_LOSS),
)
def _also_an_owed_batch(original: Any, self: Any, row: Any, actions: Any) -> Any:
    named = self.accepted
    if row.status != OWED or named is None or not len(named):
        return original(self, row, actions)
    lost = self.look(row)
    return self.pass_over(row, lost, named, actions) if lost.found.unread else row


@_PEOPLE.of(
    "accept_replay accepts every batch",
    (batch_driver, "check_skip"),
    profiles=("people-keep",),
    kinds=(people.ACCEPT_REPLAY_LEFT_ON, faults.CHECKPOINT_BACK),
)
def _any_replay(original: Any, row: Any, replay: Any, *, accept_replay: int | None) -> None:
    original(row, replay, accept_replay=accept_replay if accept_replay is None else row.batch_id)


@_PEOPLE.of(
    "a decision over a lost outcome names no batch",
    (Recovery, "_decided_by_operator"),
    kinds=(people.REMAKE_TOPIC, people.REFILL_TOPIC, people.RECOVER_ACCEPT_REPLAY),
)
def _names_no_batch(original: Any, self: Any, row: Any, kafka: Any, halt: Any, findings: Any) -> Any:
    if self.choice.batch_id is None:
        self.choice = replace(self.choice, batch_id=row.batch_id)
    return original(self, row, kafka, halt, findings)


@_PEOPLE.of("a command marks a new row as known", (Recovery, "run"), kinds=(people.DELETE_STATE, people.RECOVER_ADOPT))
def _command_marks_a_new_row(original: Any, self: Any, **claim: Any) -> Any:
    recovered = original(self, **claim)
    row = recovered.row
    if view_of(row).fresh:
        pair = str(recovered.initialized.producer)
        row = self.store.mark_initialized(row.transactional_id, row.generation, pair)
    return replace(recovered, row=row)


# --- bad rows ----------------------------------------------------------------------------------------------------

_BAD_ROWS: Final = Mutants("tv2-bad")


class _Forgetful:
    """Work that does not know what was left out when its batch was decided."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def recall(self) -> None: ...


@_BAD_ROWS.of("a resend without the exclusions", (BatchDriver, "_attempt"))
def _resends_every_row(original: Any, self: Any, batch_id: int, work: Any, number: int, *, resend: bool) -> Any:
    return original(self, batch_id, _Forgetful(work) if resend else work, number, resend=resend)


@_BAD_ROWS.of("a skip is compared with the bad rows", (BatchDriver, "_write"))
def _compares_every_row(original: Any, self: Any, batch_id: int, work: Any) -> Any:
    return original(self, batch_id, _Forgetful(work))


@_BAD_ROWS.of("what a search has tried stays", (BatchDriver, "_search"))
def _commits_its_search(original: Any, self: Any, work: Any, error: Any) -> Any:
    found = original(self, work, error)
    self._store.database.add(tuple(record for record in work._evaluate() if record.partition == 0))
    return found


# --- letters -----------------------------------------------------------------------------------------------------

_LETTERS: Final = Mutants("tv2-letters")


@_LETTERS.of("a skip is compared without letters", (SimWork, "reread"))
def _compares_without_letters(original: Any, self: Any) -> Any:
    self.letters = tuple
    return original(self)


def _counts_no_letters(original: Any, self: Any, ticket: Any, open_decision: Any) -> Any:
    made = original(self, ticket, open_decision)
    records = made.counts.record_count - len(self.letters())
    known = {"record_count": records, "expected_records": records, "digest": digest_of(self._records)}
    return replace(made, counts=replace(made.counts, **known))


def _shows_outside(original: Any, self: Any) -> Any:
    return original(self) + self.__dict__.get("outside", [])


@_LETTERS.of(
    "letters are sent outside of the transaction",
    (SimWork, "send_letters"),
    also=(
        (SimWork, "produce", calling(_counts_no_letters)),
        (SimWork, "reread", calling(_compares_without_letters)),
        (SimBroker, "letters", calling(_shows_outside)),
    ),
)
def _sends_outside(_original: Any, self: Any, ticket: Any, letters: Any) -> dict[Any, Any]:
    """As a producer of its own would, without a transaction."""
    outside = self._world.broker.__dict__.setdefault("outside", [])
    outside += [(letter, str(ticket.producer)) for letter in letters]
    return {}


@_LETTERS.of("letters are not sent again", (SimWork, "send_letters"))
def _sends_letters_once(original: Any, self: Any, ticket: Any, letters: Any) -> Any:
    return {} if ticket.kafka_only else original(self, ticket, letters)


@_LETTERS.of("letters are sent again in another order", (SimWork, "send_letters"))
def _resends_backwards(original: Any, self: Any, ticket: Any, letters: Any) -> Any:
    return original(self, ticket, letters[::-1] if ticket.kafka_only else letters)


_LETTERS.add(
    "the partition of letters is not added",
    (SimWork, "partitions", returning(PARTITIONS)),
    profiles=("tv0-letters",),
)

MUTANTS: Final = _PEOPLE + _BAD_ROWS + _LETTERS
