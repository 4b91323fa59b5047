"""What must hold when nothing runs any more. Each checker says one thing, and knows nothing of faults.

The two sides are read as their readers see them: the partitions by a reader with isolation.level=read_committed, from
the log alone; the table as it was committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from jdbc_state import DONE
from spark_2pc_sink.errors import BatchAttemptsExhaustedError, HaltCause, LocalProtocolError
from tests.simulation import faults
from tests.simulation.broker import TRANSACTIONAL_ID
from tests.simulation.drivers import ATTEMPTS_MAX
from tests.simulation.partition import Record
from tests.simulation.world import World

Checker = Callable[[World], Iterator[str]]


def in_kafka(world: World) -> list[tuple[Record, str]]:
    """The committed records and their pairs."""
    return [found for log in world.broker.logs.values() for found in log.committed()]


def agreement(world: World) -> Iterator[str]:
    """Kafka has committed a record if and only if the database has committed its row.

    Where a person has decided otherwise: of a batch that was dropped Kafka has nothing, and of a replay that was
    accepted it has another evaluation of the same rows.
    """
    kafka = {seen(world, record) for record, _ in in_kafka(world)}
    table = {
        seen(world, record) for record in world.database.contents() if record.batch_id not in world.database.dropped
    }
    for record in kafka ^ table:
        yield f"{record} is committed only in {'Kafka' if record in kafka else 'the database'}"


def seen(world: World, record: Record) -> Record:
    """The record, without the evaluation that it comes from where a person has accepted any."""
    return replace(record, version=0) if record.batch_id in world.database.accepted else record


def no_duplicate(world: World) -> Iterator[str]:
    """No record and no row is there twice."""
    for side, found in (("Kafka", [record for record, _ in in_kafka(world)]), ("table", world.database.contents())):
        # By its place in the batch: the same row of another evaluation is a duplicate too.
        counts = Counter((record.batch_id, record.partition, record.number) for record in found)
        for place, count in counts.items():
            if count > 1:
                yield f"{place} is in the {side} {count} times"


def no_loss(world: World) -> Iterator[str]:
    """Every record of every batch that Spark has recorded is there, on both sides, as Spark has planned it last."""
    for side, found in (("Kafka", [record for record, _ in in_kafka(world)]), ("table", world.database.contents())):
        there = {as_planned(world, record) for record in found}
        for batch_id in range(world.next_batch):
            for partition, count in enumerate(world.profile.batches[batch_id]):
                planned = [Record(batch_id, partition, number, world.plans[batch_id]) for number in range(count)]
                missing = [record.number for record in planned if as_planned(world, record) not in there]
                if missing and not (batch_id in world.database.dropped and side == "Kafka"):
                    yield f"batch {batch_id}, partition {partition}: {missing} not in the {side}"


def as_planned(world: World, record: Record) -> Record:
    """The record as `seen`, and without the evaluation that it comes from where each gives other rows."""
    return replace(record, version=0) if world.profile.drifts else seen(world, record)


def nothing_undecided(world: World) -> Iterator[str]:
    """No committed record belongs to a transaction that the database did not decide."""
    decided = {decision.prepared for decision in world.database.decisions}
    for record, pair in in_kafka(world):
        if pair not in decided:
            yield f"{record} is committed in Kafka by {pair}, which the database never decided"


def pairs(world: World) -> Iterator[str]:
    """No pair is handed out by InitProducerId twice, and none begins two transactions."""
    for pair, count in Counter(world.broker.answered).items():
        if count > 1:
            yield f"InitProducerId answered {pair} {count} times"
    for pair, attempts in world.begun.items():
        if len(attempts) > 1:
            yield f"{pair} began {len(attempts)} transactions: (generation, number, batch) {attempts}"


def nothing_open(world: World) -> Iterator[str]:
    """No open transaction holds up the readers with isolation.level=read_committed."""
    for partition, log in world.broker.logs.items():
        offset = log.producers.first_open_offset()
        if offset is not None:
            yield f"{partition} is left with an open transaction at offset {offset}"


def progress(world: World) -> Iterator[str]:
    """Everything is completed, and the row says so."""
    row = world.database.read(TRANSACTIONAL_ID)
    last = len(world.profile.batches) - (0 if world.looked else 1)
    if not world.finished:
        yield f"Spark has recorded {world.next_batch} batches only"
    elif row is None or (row.status, row.batch_id) != (DONE, last):
        yield f"at rest the row says {row}"


def halt(world: World) -> Iterator[str]:
    """A halt comes only where Spark has another batch than the one that a side has, or another one's turn is it."""
    set_back = any(fault == faults.CHECKPOINT_BACK for _, fault in world.choices.taken)
    for error in world.halts:
        another = error.cause in (HaltCause.RESEND_DIFFERS, HaltCause.REPLAY_DIFFERS)
        misplaced = error.cause in (HaltCause.GAP, HaltCause.OTHER_BATCH_OWED)
        if not (world.profile.drifts and another) and not (set_back and (another or misplaced)):
            yield f"halted: {error.reason} (database: {error.database_side}; Kafka: {error.kafka_side})"


def resends(world: World) -> Iterator[str]:
    """A batch is owed only where something could abort its transaction behind the driver's back."""
    if world.database.owed_count and not any(fault in faults.ABORTING for _, fault in world.choices.taken):
        yield f"Kafka was owed {world.database.owed_count} batches, and nothing had aborted a decided transaction"


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
    "pairs": pairs,
    "halt": halt,
    "claims": claims,
    "resends": resends,
    "nothing open": nothing_open,
    "order of calls": order_of_calls,
    "progress": progress,
}


def check(world: World) -> list[tuple[str, str]]:
    """Every violation: the checker and what it says. After a lost commit, a halt is all that can be asked for."""
    if world.halts and world.lost_commits:
        return []
    return [(name, text) for name, checker in CHECKERS.items() for text in checker(world)]
