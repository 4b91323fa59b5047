"""Defects outside the driver's code: in tasks, in the state store, in the coordinator and in partition leaders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jdbc_state.model import DECIDE
from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator import init_producer_id
from spark_2pc_sink.reference.log.producer_state import ProducerStates, Refused, Verified
from tests.simulation.broker import SimBroker
from tests.simulation.defects import TWO_DRIVERS, returning
from tests.simulation.drivers import SimWork
from tests.simulation.kafka import SimKafka
from tests.simulation.mutants import Mutant
from tests.unit.fakes import coordinator, memory_store


def _retry_writes(_original: Any) -> Any:
    def run_again(self: Any, ticket: Any, partition: Any, records: Any) -> int:
        again = self._world.evaluate(self._batch_id)
        records = tuple(record for record in again if record.partition == partition.partition)
        kept = tuple(record for record in self._records if record.partition != partition.partition)
        self._records = (*kept, *records)
        code, offset, _ = self._kafka.broker.produce(ticket.producer, partition, records, 0)
        assert code == Code.NONE
        return int(offset)

    return run_again


def _copy_commits(_original: Any) -> Any:
    def copy(self: Any, _connection: Any, records: Any) -> None:
        self._world.database.committed.append(("copy", records))
        self._written += records

    return copy


def _copy_twice(original: Any) -> Any:
    def copy_into(self: Any, connection: Any) -> Any:
        self._written = ()
        return original(self, connection)

    return copy_into


def _any_generation(original: Any) -> Any:
    def moved(self: Any, move: Any) -> Any:
        any_claim = replace(move, generation=self._rows[move.transactional_id].generation)
        return original(self, any_claim if move.operation == DECIDE else move)

    return moved


def _any_decision(original: Any) -> Any:
    def fits(row: Any, move: Any) -> bool:
        return original(row, replace(move, expected=None))  # type: ignore[no-any-return]

    return fits


def _checks_nothing(_original: Any) -> Any:
    def check_generation(self: Any, transactional_id: str, _generation: int) -> Any:
        return self.read(transactional_id)

    return check_generation


def _same_generation(original: Any) -> Any:
    def taken_over(self: Any, row: Any, claimant: Any) -> Any:
        taken = original(self, row, claimant)
        return taken if row is None else replace(taken, generation=row.generation)

    return taken_over


def _does_not_bump(original: Any) -> Any:
    def emptied(before: Any, event: Any, now_ms: int, *, pair: Any, last_producer_epoch: int) -> Any:
        known = before.producer_epoch >= 0 and before.producer_id == pair.producer_id
        kept = before.pair if known else pair
        return original(before, event, now_ms, pair=kept, last_producer_epoch=last_producer_epoch)

    return emptied


def _marker_of_the_same_epoch_only(original: Any) -> Any:
    def find(self: Any, partition: Any, *, epochs: frozenset[int], **others: Any) -> Any:
        return original(self, partition, epochs=frozenset({min(epochs)}), **others)

    return find


def _any_epoch_writes(original: Any) -> Any:
    def judge(self: Any, stamp: Any, **facts: Any) -> Any:
        standing = original(self, stamp, **facts)
        return Verified() if isinstance(standing, Refused) else standing

    return judge


def _forgets_markers(original: Any) -> Any:
    def finish(*args: Any, **kwargs: Any) -> Any:
        state, _ = original(*args, **kwargs)
        return state, ()

    return finish


def _record_after_the_reply(original: Any) -> Any:
    def crash(self: Any) -> None:
        self.state_log = self.state_log[: max(1, len(self.state_log) - 1)]
        original(self)

    return crash


DEFECTS_OUTSIDE: tuple[Mutant, ...] = (
    Mutant("a task retry writes", ((SimWork, "run_task_again", _retry_writes),), ("tv2-drift",)),
    Mutant("COPY outside the deciding transaction", ((SimWork, "_copy", _copy_commits),)),
    Mutant("rows written while tasks ran are written again", ((SimWork, "copy_into", _copy_twice),)),
    Mutant(
        "no generation check in the deciding UPDATE",
        ((memory_store.MemoryStateStore, "moved", _any_generation),),
        kinds=TWO_DRIVERS,
    ),
    Mutant("no check of the decision before", ((memory_store, "fits", _any_decision),), ("tv2-async",)),
    Mutant(
        "no generation check anywhere",
        (
            (memory_store.MemoryStateStore, "moved", _any_generation),
            (memory_store.MemoryStateStore, "check_generation", _checks_nothing),
        ),
    ),
    Mutant("a claim leaves the generation", ((memory_store.MemoryStateStore, "_taken_over", _same_generation),)),
    Mutant("the marker is looked for at one epoch", ((SimKafka, "find_marker", _marker_of_the_same_epoch_only),)),
    Mutant("InitProducerId leaves the epoch", ((init_producer_id, "_emptied", _does_not_bump),)),
    Mutant(
        "leaders take any epoch",
        (
            (ProducerStates, "standing", _any_epoch_writes),
            (ProducerStates, "check_batch", returning(Code.NONE)),
            (ProducerStates, "duplicate", returning(None)),
        ),
    ),
    Mutant("a restarted coordinator owes no markers", ((coordinator, "finish_loading", _forgets_markers),)),
    Mutant("the coordinator answers before its record is durable", ((SimBroker, "crash", _record_after_the_reply),)),
)
