"""The conflict rule: what becomes of a row whose key is in the table already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.errors import ConfigurationError


@dataclass(frozen=True)
class ConflictRule:
    """A part of the plan of a batch's columns. Can be pickled.

    Attributes:
        ignore: the row that is there stays as it is (``mode="insert_ignore"``).
        update_columns: which columns of the row that is there change; None for all that are written.
        where: SQL over ``EXCLUDED`` and the table's name, as PostgreSQL's ``ON CONFLICT … DO UPDATE … WHERE``: without
            it, or where it is true, the row that is there changes.
        unchanged: columns for which a row may carry no value (``unchanged_when``); the row that is there keeps its own.
    """

    ignore: bool = False
    update_columns: tuple[str, ...] | None = None
    where: str | None = None
    unchanged: tuple[str, ...] = ()

    def updated(self, names: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
        """The columns that a row changes in the one that is there.

        Args:
            names: all columns that are written.
            keys: of a row.
        """
        if self.ignore:
            return ()
        chosen = names if self.update_columns is None else self.update_columns
        return tuple(name for name in names if name in chosen and name not in keys)

    def check(self, names: Sequence[str], keys: Sequence[str], *, order_column: str | None = None) -> None:
        """Refuse columns that cannot be updated.

        Args:
            names: all columns that are written.
            keys: of a row.
            order_column: the column by which late rows are told, where they are.

        Raises:
            ConfigurationError: one of ``update_columns`` or ``unchanged_when`` is not written or is a key; or late rows
                could not be told from others, as their order would not be kept.
        """
        named = {"update_columns": self.update_columns or (), "unchanged_when": self.unchanged}
        for option, name in ((option, name) for option, given in named.items() for name in given):
            if name not in names or name in keys:
                why = (
                    "an upsert key, which stays as it is" if name in keys else "not among the columns that are written"
                )
                others = ", ".join(other for other in names if other not in keys)
                raise _refused(option, named[option], f"{name!r} is {why}", f"the columns are {others}")
        if order_column is not None and order_column not in self.updated(names, keys):
            raise _refused(
                "update_columns",
                self.update_columns or (),
                f"column {order_column!r} tells late rows, and would keep the order of the first row of its key",
                f"add {order_column!r}; or leave late rows at 'replace'",
            )


#: The row that is there takes all values of the new one.
REPLACE: Final = ConflictRule()


def _refused(option: str, columns: Sequence[str], rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option=option, value=list(columns), rule=rule, remedy=remedy)
