"""Halts: what tests expect of one, its cause and not its words; and one to raise, whose words do not matter."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.errors import HaltCause, HaltError


def halts(cause: HaltCause, *, match: str | None = None) -> pytest.RaisesExc[HaltError]:
    """A context whose block must halt for this cause; with ``match`` where the test is about the words too."""
    return pytest.raises(HaltError, match=match, check=lambda error: error.cause is cause)


def halt(cause: HaltCause = HaltCause.GAP, **changes: Any) -> HaltError:
    fields: dict[str, Any] = {
        "database_side": "batch 1, done",
        "kafka_side": "nothing in doubt",
        "reason": "batch 3 follows batch 1",
        "remedies": ("do this", "or that"),
    }
    return HaltError(transactional_id="orders", cause=cause, **{**fields, **changes})
