"""The limit of bad rows: how many of a batch may go to the dead letters before the batch fails."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

from spark_2pc_sink.errors import ConfigurationError

#: Maximum for one batch, whatever the option. The driver holds their list, and compares it with each row of the next
#: attempt; and finding that many in the database takes minutes.
BAD_ROWS_MAX: Final = 10_000
#: Default: what a person can inspect. A change that makes every row bad exceeds it.
BAD_ROWS_DEFAULT: Final = 100
_PERCENT: Final = 100


@dataclass(frozen=True, repr=False)
class BadRowLimit:
    """A number of rows, or a share of the rows of the batch. Its repr is the user's notation.

    Attributes:
        rows: the number; `BAD_ROWS_MAX` for a share.
        share: the part of the batch's rows, from 0 to 1; None for a number.
    """

    rows: int = BAD_ROWS_DEFAULT
    share: Decimal | None = None

    @classmethod
    def parse(cls, given: object) -> BadRowLimit:
        """Read ``100``, ``0.001`` or ``"0.1%"``.

        Raises:
            ConfigurationError: it is none of these, or out of bounds.
        """
        if isinstance(given, BadRowLimit):
            return given
        if isinstance(given, int) and not isinstance(given, bool):
            if not 0 <= given <= BAD_ROWS_MAX:
                raise _refused(given)
            return cls(rows=given)
        share = _share(given)
        if share is None or not 0 < share < 1:
            raise _refused(given)
        return cls(rows=BAD_ROWS_MAX, share=share)

    def of(self, rows: int) -> int:
        """The limit for this many rows: a share is rounded down."""
        return self.rows if self.share is None else min(self.rows, math.floor(self.share * rows))

    def __str__(self) -> str:
        if self.share is None:
            return str(self.rows)
        return f"{(self.share * _PERCENT).normalize():f}%"

    def __repr__(self) -> str:
        return str(self) if self.share is None else repr(str(self))


def _share(given: object) -> Decimal | None:
    text, divisor = str(given), 1
    if isinstance(given, str):
        if not given.strip().endswith("%"):
            return None
        text, divisor = given.strip()[:-1], _PERCENT
    elif not isinstance(given, float):
        return None
    try:
        share = Decimal(text.strip()) / divisor
    except InvalidOperation:
        return None
    return share if share.is_finite() else None


def _refused(given: object) -> ConfigurationError:
    return ConfigurationError(
        option="max_bad_rows",
        value=given,
        rule=f"it is a number of rows from 0 to {BAD_ROWS_MAX}, or a share of the batch's rows between 0 and 1",
        remedy="pass max_bad_rows=100, max_bad_rows=0.001 or max_bad_rows='0.1%'",
    )
