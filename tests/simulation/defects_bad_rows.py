"""Defects in what becomes of bad rows: a replay that is split otherwise than the batch that was decided."""

from __future__ import annotations

from typing import Any, Final

from spark_2pc_sink.sink.driver.batch_driver import BatchDriver
from tests.simulation.mutants import Mutant

_PROFILES: Final = ("tv2-bad",)


class _Forgetful:
    """Work that does not know what was left out when its batch was decided."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def recall(self) -> None:
        """Nothing."""


def _resends_every_row(original: Any) -> Any:
    def attempt(self: Any, batch_id: int, work: Any, *, kafka_only: bool) -> None:
        original(self, batch_id, _Forgetful(work) if kafka_only else work, kafka_only=kafka_only)

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


DEFECTS_BAD_ROWS: Final[tuple[Mutant, ...]] = (
    Mutant("a resend without the exclusions", ((BatchDriver, "_attempt", _resends_every_row),), _PROFILES),
    Mutant("a skip is compared with the bad rows", ((BatchDriver, "_write", _compares_every_row),), _PROFILES),
    Mutant("what a sift has tried stays", ((BatchDriver, "_search", _commits_what_it_sifts),), _PROFILES),
)
