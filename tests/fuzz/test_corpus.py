"""Each target on each input of the corpus, and on what one changed byte makes of it: fuzzing without its search."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import CORPUS, NAMES, TARGETS, inputs

CHANGES = 20
#: Of all inputs together: the corpus is small enough to be run with every commit.
CORPUS_BYTES_MAX = 256 * 1024


@pytest.mark.parametrize(("target", "path"), inputs(), ids=lambda value: getattr(value, "name", value))
def test_no_input_has_another_end_than_its_reader_promises(target: str, path: Path) -> None:
    data = path.read_bytes()
    TARGETS[target](data)
    chance = random.Random(path.name)
    for _ in range(CHANGES if data else 0):
        changed = bytearray(data)
        changed[chance.randrange(len(data))] = chance.randrange(256)
        TARGETS[target](bytes(changed))


def test_every_target_has_a_corpus_that_is_small() -> None:
    assert set(NAMES) == set(TARGETS)
    assert sum(path.stat().st_size for _, path in inputs()) < CORPUS_BYTES_MAX
    assert all(any((CORPUS / name).iterdir()) for name in NAMES)
