"""How leaders translate the coordinator's codes for producers and for TxnOffsetCommit."""

from __future__ import annotations

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.coordinator.leader_answers import offsets_code, produce_code, produce_message

# Coordinator says; then what Produce v>=12, v11 and v<=10 are told.
PRODUCE = """
90  47 47 47
49  49 49 49
51  51 19 19
120 120 120 48
14  19 19 19
15  19 19 19
16  19 19 19
13  19 19 19
3   3  3  3
55  55 55 55
0   0  0  0
"""
# Coordinator (or append) says; then what TxnOffsetCommit v>=5, v4, v3, v1 are told.
OFFSETS = """
0   0   0   0  0
90  47  47  47 47
49  49  49  49 49
51  51  51  51 51
120 120 120 48 48
14  14  14  14 15
15  15  15  15 15
16  16  16  16 16
13  14  14  14 15
3   15  15  15 15
19  15  15  15 15
7   15  15  15 15
6   16  16  16 16
"""


def cells(table: str, versions: tuple[int, ...]) -> list[object]:
    found: list[object] = []
    for line in table.strip().split("\n"):
        code, *told = (int(word) for word in line.split())
        found += [
            pytest.param(version, code, each, id=f"{code}-v{version}")
            for version, each in zip(versions, told, strict=True)
        ]
    return found


@pytest.mark.parametrize(("version", "code", "told"), cells(PRODUCE, (12, 11, 10)))
def test_every_cell_for_producers(version: int, code: int, told: int) -> None:
    """KIP-890, Old Clients: 'we opt to use NOT_ENOUGH_REPLICAS'; a too-high epoch also ends as 47."""
    assert produce_code(version, code) == told
    assert (produce_message(told, code) is not None) is (told in {Code.INVALID_TXN_STATE, Code.NOT_ENOUGH_REPLICAS})


@pytest.mark.parametrize(("version", "code", "told"), cells(OFFSETS, (5, 4, 3, 1)))
def test_every_cell_for_offset_commits(version: int, code: int, told: int) -> None:
    """90->47, NETWORK_EXCEPTION->14, 3/19/7->15, 6->16; 120 passes from v4 on; v<2 replaces 14 by 15."""
    assert offsets_code(version, code) == told
