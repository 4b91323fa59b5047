"""The command refuses what it cannot run, before it starts anything."""

from __future__ import annotations

import pytest

from tests.chaos.command import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--jobs=rows,order"], "no such job: order; there are rows, orders, outputs"),
        (["--jobs=orders,outputs"], "orders and outputs do not run together"),
        (["--jobs=outputs", "--faults=driver-kill"], "no such fault: driver-kill; there are spark-driver-kill"),
    ],
)
def test_what_cannot_run_is_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        main(arguments)
