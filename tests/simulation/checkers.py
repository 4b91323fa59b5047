"""What must hold when nothing runs any more. Each checker says one thing, and knows nothing of faults.

The two sides are read as their readers see them: the partitions by a reader with isolation.level=read_committed, from
the log alone; the table as it was committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from jdbc_state import DONE
from spark_2pc_sink.errors import BatchAttemptsExhaustedError, HaltCause, LocalProtocolError
from tests.simulation import faults
from tests.simulation.broker import Record
from tests.simulation.drivers import ATTEMPTS_MAX
from tests.simulation.schedule import BOTH, TABLE_ALONE, TOPIC_ALONE
from tests.simulation.world import KAFKA, TABLE, World
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID

Checker = Callable[[World], Iterator[str]]


def sides(world: World) -> tuple[tuple[str, list[Record]], ...]:
    return (KAFKA, [record for record, _ in world.in_kafka()]), (TABLE, world.database.contents())


def agreement(world: World) -> Iterator[str]:
    """Kafka has a record exactly where the database has its row, unless a person accepted the difference."""
    (_, kafka), (_, table) = ((side, {world.ledger.seen(record) for record in found}) for side, found in sides(world))
    for record in kafka ^ table:
        if world.profile.outputs[record.partition] != BOTH:
            continue
        has, lacks = (KAFKA, TABLE) if record in kafka else (TABLE, KAFKA)
        if not world.ledger.may_lack(lacks, record.batch_id):
            yield f"{record} is committed only in the {has}"


def no_duplicate(world: World) -> Iterator[str]:
    """No record and no row is duplicated; what was deleted with a topic does not count."""
    kafka = [record for record, _ in world.broker.committed()]
    for side, found in ((KAFKA, kafka), (TABLE, world.database.contents())):
        # By its place in the batch: the same row of another evaluation is a duplicate too.
        counts = Counter((record.batch_id, record.partition, record.number) for record in found)
        for place, count in counts.items():
            if count > world.ledger.times_max(place[0]):
                yield f"{place} is in the {side} {count} times"


def no_loss(world: World) -> Iterator[str]:
    """Every record of every batch that Spark has recorded is there, on both sides, as Spark has planned it last."""
    left_out = {record.place for record in world.database.dead_letters()}
    for side, found in sides(world):
        there = {as_planned(world, record) for record in found}
        for batch_id in range(world.next_batch):
            for partition, count in enumerate(world.profile.batches[batch_id]):
                if world.profile.outputs[partition] == (TABLE_ALONE if side == KAFKA else TOPIC_ALONE):
                    continue
                planned = [Record(batch_id, partition, number, world.plans[batch_id]) for number in range(count)]
                wanted = [record for record in planned if record.place not in left_out]
                missing = [record.number for record in wanted if as_planned(world, record) not in there]
                if missing and not world.ledger.may_lack(side, batch_id):
                    yield f"batch {batch_id}, partition {partition}: {missing} not in the {side}"


def one_decision(world: World) -> Iterator[str]:
    """A batch has all its outputs, or none of them; also where some go to one side alone."""
    there = {(record.batch_id, record.partition) for _, found in sides(world) for record in found}
    for batch_id in {batch_id for batch_id, _ in there}:
        for partition, count in enumerate(world.profile.records_of(batch_id)):
            planned = {(batch_id, partition, number) for number in range(count)} - world.profile.bad
            if planned and (batch_id, partition) not in there:
                yield f"batch {batch_id} is committed without its rows of partition {partition}"


def dead_letters(world: World) -> Iterator[str]:
    """The bad rows of every batch that Spark has recorded are in the dead letters, once, and on no side."""
    found = Counter(record.place for record in world.database.dead_letters())
    for place, count in found.items():
        if count > 1 or place not in world.profile.bad:
            yield f"{place} is in the dead letters {count} times"
    yield from (
        f"{bad} is not in the dead letters" for bad in world.profile.bad - set(found) if bad[0] < world.next_batch
    )
    for side, records in sides(world):
        yield from (f"the bad row {record} is in the {side}" for record in records if record.place in world.profile.bad)


def dead_letter_topic(world: World) -> Iterator[str]:
    """The topic of dead letters has what the table of dead letters has, batch by batch and in order, and once."""
    found: dict[int, list[Record]] = {}
    for record, _ in world.broker.letters():
        found.setdefault(record.batch_id, []).append(record)
    wanted: dict[int, list[Record]] = {}
    if world.profile.letters:
        for record in sorted(world.database.dead_letters(), key=lambda each: each.place):
            wanted.setdefault(record.batch_id, []).append(record)
    for batch_id in sorted(found.keys() | wanted.keys()):
        if found.get(batch_id) != wanted.get(batch_id):
            yield f"batch {batch_id}: the topic has {found.get(batch_id)}, the table {wanted.get(batch_id)}"


def as_planned(world: World, record: Record) -> Record:
    """The record as `Ledger.seen`, and without the evaluation that it comes from where another is no loss."""
    another = world.profile.drifts or record.batch_id in world.ledger.left_out
    return replace(record, version=0) if another else world.ledger.seen(record)


def nothing_undecided(world: World) -> Iterator[str]:
    """No committed record belongs to a transaction that the database did not decide."""
    decided = {decision.prepared for decision in world.database.decisions}
    for record, pair in world.in_kafka() + world.broker.letters():
        if pair not in decided:
            yield f"{record} is committed in Kafka by {pair}, which the database never decided"


def on_decide(world: World) -> Iterator[str]:
    """What a user adds to a decision is there once for each batch that is there, and for no other."""
    added = Counter(world.database.decided_with())
    written = {record.batch_id for _, found in sides(world) for record in found}
    written |= {record.batch_id for record in world.database.dead_letters()}
    for batch_id in sorted(added.keys() | written):
        if added[batch_id] != (batch_id in written):
            what = "committed" if batch_id in written else "not committed"
            yield f"batch {batch_id} is {what}, with {added[batch_id]} calls of on_decide"


def pairs(world: World) -> Iterator[str]:
    """No pair is handed out by InitProducerId twice, and none begins two transactions."""
    for pair, count in Counter(world.broker.answered).items():
        if count > 1:
            yield f"InitProducerId answered {pair} {count} times"
    for pair, attempts in world.begun.items():
        if len(attempts) > 1:
            yield f"{pair} began {len(attempts)} transactions, of batches {[batch for _, batch in attempts]}"


def nothing_open(world: World) -> Iterator[str]:
    """No open transaction holds up the readers with isolation.level=read_committed."""
    for partition, log in world.broker.logs.items():
        offset = log.producers.first_open_offset(-1)
        if offset >= 0:
            yield f"{partition} has an open transaction at offset {offset}"


def progress(world: World) -> Iterator[str]:
    """Everything is completed, and the row says so."""
    row = world.database.read(TRANSACTIONAL_ID)
    last = len(world.profile.batches) - (0 if world.looked else 1)
    if not world.finished:
        yield f"Spark recorded only {world.next_batch} batches"
    elif row is None or (row.status, row.batch_id) != (DONE, last):
        yield f"the final state row is {row}"


def halt(world: World) -> Iterator[str]:
    """A halt comes only where Spark has another batch than the one that a side has, or another one's turn is it."""
    set_back = any(fault == faults.CHECKPOINT_BACK for _, fault in world.choices.taken)
    for error in world.halts:
        another = error.cause in (HaltCause.RESEND_DIFFERS, HaltCause.REPLAY_DIFFERS)
        misplaced = error.cause in (HaltCause.GAP, HaltCause.BATCHES_RESTARTED, HaltCause.OTHER_BATCH_OWED)
        if not (world.profile.drifts and another) and not (set_back and (another or misplaced)):
            yield f"halted: {error.reason} (database: {error.database_side}; Kafka: {error.kafka_side})"


def resends(world: World) -> Iterator[str]:
    """A batch is owed only where something could abort its transaction behind the driver's back."""
    if world.database.owed_count and not any(fault in faults.ABORTING for _, fault in world.choices.taken):
        yield f"{world.database.owed_count} batches are marked as owed to Kafka, but no fault aborted any"


def claims(world: World) -> Iterator[str]:
    """A run whose claim was superseded claims no more."""
    granted = world.database.claims
    for run_id in set(granted) - {None}:
        own = [place for place, each in enumerate(granted) if each == run_id]
        if own[-1] - own[0] != len(own) - 1:
            yield f"{run_id} claimed again after it was superseded: {granted}"


def order_of_calls(world: World) -> Iterator[str]:
    """The product never breaks its own protocol, and gives a batch up only after as many faults as attempts."""
    for error in world.errors:
        # Where a note was lost with a failover, the move that follows it is refused, and a recovery repeats the note.
        if isinstance(error, LocalProtocolError) and not world.lost_commits:
            yield f"a driver failed with {error!r}"
        elif isinstance(error, BatchAttemptsExhaustedError) and len(world.choices.taken) < ATTEMPTS_MAX:
            yield f"{error} after {len(world.choices.taken)} faults"


#: By name; in the order in which a violation is explained best.
CHECKERS: dict[str, Checker] = {
    "no duplicate": no_duplicate,
    "nothing undecided": nothing_undecided,
    "no loss": no_loss,
    "agreement": agreement,
    "one decision": one_decision,
    "on_decide": on_decide,
    "dead letters": dead_letters,
    "dead letter topic": dead_letter_topic,
    "pairs": pairs,
    "halt": halt,
    "claims": claims,
    "resends": resends,
    "nothing open": nothing_open,
    "order of calls": order_of_calls,
    "progress": progress,
}


#: What must hold where people acted and the job reports no problem.
GREEN: Final = ("no duplicate", "no loss", "agreement", "nothing open", "pairs")


def green(world: World) -> bool:
    """Whether the job ended as if nothing were wrong: no halt, no error, nothing in doubt, and the next start runs."""
    return world.looked and world.drivers[-1].outcome == "finished"


def check(world: World) -> list[tuple[str, str]]:
    """Every violation: the checker and what it says.

    After a lost commit, a halt is all that can be asked for. Nor can more be asked for where a person has acted: but
    what ends green must be right, as far as nobody has accepted exactly what is not.
    """
    if world.halts and world.lost_commits:
        return []
    names: Iterable[str] = CHECKERS
    if world.people.acted:
        names = GREEN if green(world) and not world.people.nothing_is_left else ()
    return [(name, text) for name in names for text in CHECKERS[name](world)]
