"""Defects in what becomes of bad rows: replays that are split otherwise than decided, and letters that go astray."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from tests.simulation.broker import PARTITIONS, SimBroker
from tests.simulation.drivers import SimWork, digest_of
from tests.simulation.mutants import Mutant

_PROFILES: Final = ("tv2-bad",)
_LETTERS: Final = ("tv2-letters",)


class _Forgetful:
    """Work that does not know what was left out when its batch was decided."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def recall(self) -> None:
        """Nothing."""


def _resends_every_row(original: Any) -> Any:
    def attempt(self: Any, batch_id: int, work: Any, number: int, *, resend: bool) -> Any:
        return original(self, batch_id, _Forgetful(work) if resend else work, number, resend=resend)

    return attempt


def _compares_every_row(original: Any) -> Any:
    def write(self: Any, batch_id: int, work: Any) -> Any:
        return original(self, batch_id, _Forgetful(work))

    return write


def _commits_what_it_sifts(original: Any) -> Any:
    def search(self: Any, work: Any, error: Any) -> Any:
        found = original(self, work, error)
        self._store.database.add(tuple(record for record in work._evaluate() if record.partition == 0))
        return found

    return search


def _sends_outside(_original: Any) -> Any:
    def send(self: Any, ticket: Any, letters: Any) -> dict[Any, Any]:
        """As a producer of its own would, without a transaction."""
        outside = self._world.broker.__dict__.setdefault("outside", [])
        outside += [(letter, str(ticket.producer)) for letter in letters]
        return {}

    return send


def _counts_no_letters(original: Any) -> Any:
    def produce(self: Any, ticket: Any, open_decision: Any) -> Any:
        made = original(self, ticket, open_decision)
        known = {"record_count": made.counts.record_count - made.counts.letters, "digest": digest_of(self._records)}
        return replace(made, counts=replace(made.counts, letters=0, **known))

    return produce


def _shows_outside(original: Any) -> Any:
    def letters(self: Any) -> Any:
        return original(self) + self.__dict__.get("outside", [])

    return letters


def _sends_letters_once(original: Any) -> Any:
    def send(self: Any, ticket: Any, letters: Any) -> Any:
        return {} if ticket.kafka_only else original(self, ticket, letters)

    return send


def _resends_backwards(original: Any) -> Any:
    def send(self: Any, ticket: Any, letters: Any) -> Any:
        return original(self, ticket, letters[::-1] if ticket.kafka_only else letters)

    return send


def _compares_without_letters(original: Any) -> Any:
    def reread(self: Any, ticket: Any) -> Any:
        self.letters = tuple
        return original(self, ticket)

    return reread


def _adds_no_partition_of_letters(_original: Any) -> Any:
    return lambda _work: PARTITIONS


DEFECTS_BAD_ROWS: Final[tuple[Mutant, ...]] = (
    Mutant("a resend without the exclusions", ((BatchDriver, "_attempt", _resends_every_row),), _PROFILES),
    Mutant("a skip is compared with the bad rows", ((BatchDriver, "_write", _compares_every_row),), _PROFILES),
    Mutant("what a sift has tried stays", ((BatchDriver, "_search", _commits_what_it_sifts),), _PROFILES),
    Mutant(
        "letters are sent outside of the transaction",
        (
            (SimWork, "send_letters", _sends_outside),
            (SimWork, "produce", _counts_no_letters),
            (SimWork, "reread", _compares_without_letters),
            (SimBroker, "letters", _shows_outside),
        ),
        _LETTERS,
    ),
    Mutant("letters are not sent again", ((SimWork, "send_letters", _sends_letters_once),), _LETTERS),
    Mutant("letters are sent again in another order", ((SimWork, "send_letters", _resends_backwards),), _LETTERS),
    Mutant("a skip is compared without letters", ((SimWork, "reread", _compares_without_letters),), _LETTERS),
    Mutant(
        "the partition of letters is not added",
        ((SimWork, "partitions", _adds_no_partition_of_letters),),
        ("tv0-letters",),
    ),
)
