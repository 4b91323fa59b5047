"""What tests expect of a halt: its cause, not its words."""

from __future__ import annotations

import pytest

from spark_2pc_sink.errors import HaltCause, HaltError


def halts(cause: HaltCause, *, match: str | None = None) -> pytest.RaisesExc[HaltError]:
    """A context whose block must halt for this cause; with ``match`` where the test is about the words too."""
    return pytest.raises(HaltError, match=match, check=lambda error: error.cause is cause)
