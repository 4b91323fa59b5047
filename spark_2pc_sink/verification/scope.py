"""The scope of a verification: all batches, or some of those that the history has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.plural import counted


@dataclass(frozen=True)
class Scope:
    """Which batches are compared; with none of the three, all.

    Attributes:
        since: this batch and all later ones.
        last: so many of the newest.
        batch: this one alone.

    Raises:
        ConfigurationError: more than one is given, or one is out of bounds.
    """

    since: int | None = None
    last: int | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            first, second = list(given)[:2]
            raise ConfigurationError(
                option=first, value=given[first], rule=f"it excludes {second}", remedy=f"leave {second} out"
            )
        for name, value in given.items():
            least = 1 if name == "last" else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigurationError(
                    option=name, value=value, rule=f"it is a whole number of at least {least}", remedy="correct it"
                )

    @property
    def is_all(self) -> bool:
        """Whether everything is compared."""
        return self.since is None and self.last is None and self.batch is None

    def __str__(self) -> str:
        if self.since is not None:
            return f"since batch {self.since}"
        if self.last is not None:
            return f"the last {counted(self.last, 'batch')}"
        return "all" if self.batch is None else f"batch {self.batch}"

    def of(self, batches: Sequence[int]) -> frozenset[int]:
        """Which of these batches are in it.

        Args:
            batches: those that the history knows, the oldest first.

        Raises:
            ConfigurationError: it names a batch that the history does not know, so that nobody can tell its records.
        """
        if self.is_all:
            return frozenset(batches)
        named = self.batch if self.since is None else self.since
        if not batches or (named is not None and named not in batches):
            known = f"has batches {batches[0]} to {batches[-1]}" if batches else "has no batch"
            option = next(name for name, value in vars(self).items() if value is not None)
            raise ConfigurationError(
                option=option,
                value=getattr(self, option),
                rule=f"the batch is one that the history of the sink still knows, and it {known}",
                remedy="name one of those, or leave it out to compare everything",
            )
        if self.last is not None:
            return frozenset(batches[-self.last :])
        if self.batch is not None:
            return frozenset((self.batch,))
        return frozenset(batch for batch in batches if named is not None and batch >= named)
