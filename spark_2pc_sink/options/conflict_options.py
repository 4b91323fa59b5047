"""The options of a table that say what happens to rows by their keys: which can be combined, and why.

Options are named as for a sink with one topic and one table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.errors import ConfigurationError

#: Modes in which a row is written by its keys.
KEYED_MODES: Final = ("upsert", "insert_ignore")


@dataclass(frozen=True, kw_only=True)
class ConflictOptions:
    """The given options; see `Rows` for each.

    Attributes:
        columns: columns that are written; None for every column of the batch.
    """

    mode: str
    keys: Sequence[str] = ()
    order_by: str | None = None
    late_rows: str = "replace"
    delete_when: str | None = None
    update_columns: Sequence[str] | None = None
    upsert_where: str | None = None
    unchanged_when: Mapping[str, str] | None = None
    columns: Mapping[str, str] | None = None

    def check(self) -> None:
        """Refuse options that contradict the mode.

        Raises:
            ConfigurationError: keys are missing, or an option has no effect, or could not be right.
        """
        if self.mode in KEYED_MODES and not self.keys:
            raise _contradiction("mode", self.mode, "it needs upsert_keys", "pass upsert_keys=['order_id']")
        if self.mode == "append":
            self._refuse({"upsert_keys": self.keys, "upsert_order_by": self.order_by})
        if self.mode != "upsert":
            self._refuse(
                {
                    "delete_when": self.delete_when,
                    "update_columns": self.update_columns,
                    "upsert_where": self.upsert_where,
                    "unchanged_when": self.unchanged_when,
                }
            )
        if self.order_by is None and self.late_rows != "replace":
            raise needs_order("upsert_late_rows", self.late_rows)
        self._check_late_rows()
        self._check_unchanged()
        if self.update_columns is not None and not self.update_columns:
            rule = "without a column to update, the row that is there stays as it is"
            raise _contradiction(
                "update_columns", [], rule, "pass mode='insert_ignore', or leave it out for all columns"
            )
        unknown = [key for key in self.keys if self.columns is not None and key not in self.columns]
        if unknown:
            raise _contradiction(
                "upsert_keys", unknown[0], "each is one of columns", f"add {unknown[0]!r} to columns={{...}}"
            )

    def _refuse(self, given: Mapping[str, object]) -> None:
        for name, value in given.items():
            if value:
                rule = f"it has no meaning with mode={self.mode!r}"
                raise _contradiction(name, value, rule, "pass mode='upsert'")

    def _check_late_rows(self) -> None:
        if self.late_rows != "keep_newer":
            return
        if self.mode == "insert_ignore":
            rule = "with mode='insert_ignore' the row that is there stays, newer or not"
            raise _contradiction("upsert_late_rows", self.late_rows, rule, "leave it out, or pass mode='upsert'")
        if self.delete_when is not None:
            raise _contradiction(
                "delete_when",
                self.delete_when,
                "a row that is deleted leaves no order behind, so with upsert_late_rows='keep_newer' a late row of its "
                "key would bring it back",
                "leave upsert_late_rows at 'replace' where the rows of a key come in their order; or keep the row and "
                "mark it, with columns={..., 'deleted': \"op = 'd'\"}",
            )

    def _check_unchanged(self) -> None:
        for name in self.unchanged_when or ():
            if name in self.keys or (self.columns is not None and name not in self.columns):
                rule = f"{name!r} must be one of columns, and not one of upsert_keys"
                raise _contradiction("unchanged_when", self.unchanged_when, rule, f"leave {name!r} out of it")
        if not self.unchanged_when:
            return
        if self.late_rows == "keep_newer":
            rule = "a row without a value keeps that of the change before it, which may still come late"
            raise _contradiction("unchanged_when", self.unchanged_when, rule, "leave upsert_late_rows at 'replace'")
        if self.upsert_where is not None:
            rule = "a row without a value updates the row in the table and nothing else, whatever upsert_where says"
            raise _contradiction("unchanged_when", self.unchanged_when, rule, "leave upsert_where out")


def check_superseded(mode: str, order_by: str | None, superseded: str, *, unchanged: bool) -> None:
    """Refuse to omit records if it is not known in time which.

    Args:
        mode: mode of the table.
        order_by: order of its rows.
        superseded: handling of superseded records.
        unchanged: some rows contain only some values (``unchanged_when``).

    Raises:
        ConfigurationError: there is no order; or only the database could tell, after the records are sent.
    """
    if superseded == "send_first":
        return
    if mode == "insert_ignore":
        raise _contradiction(
            "upsert_superseded",
            superseded,
            "with mode='insert_ignore' only the table tells which rows are left out, and it is asked after the records "
            "are sent",
            "leave it out, and have readers keep the first record of each key; or drop the rows before the sink, with "
            "dropDuplicatesWithinWatermark",
        )
    if order_by is None:
        raise needs_order("upsert_superseded", superseded)
    if unchanged:
        rule = "with unchanged_when the last record of a key may lack a value that only a superseded record has"
        raise _contradiction("upsert_superseded", superseded, rule, "leave it at 'send_first'")


def needs_order(name: str, given: str) -> ConfigurationError:
    """The error for an option that needs an order of the rows with one key."""
    rule = "it needs an order of the rows with one key"
    return _contradiction(name, given, rule, f"pass upsert_order_by='event_time', or leave {name} out")


def _contradiction(option: str, value: object, rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option=option, value=value, rule=rule, remedy=remedy)
