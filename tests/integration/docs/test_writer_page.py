"""The example of docs/writer.md, on the reference coordinator: run, run again, and crashed on both sides of COMMIT."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_2pc_sink.testing import ReferenceCoordinator, read_topic

PAGE = (Path(__file__).parents[3] / "docs" / "writer.md").read_text()


class CrashError(Exception):
    """The program ends here."""


class Database:
    """What the reader of the page brings: one text, and perhaps a crash before or after its COMMIT."""

    def __init__(self) -> None:
        self.saved = ""
        self.crash = ""

    def load(self) -> str:
        return self.saved

    def save(self, text: str) -> None:
        crash, self.crash = self.crash, ""
        if crash != "before":
            self.saved = text
        if crash:
            raise CrashError


@pytest.fixture(scope="module")
def broker() -> Iterator[ReferenceCoordinator]:
    with ReferenceCoordinator() as running:
        running.create_topic("orders")
        yield running


def test_the_example_of_the_page(broker: ReferenceCoordinator) -> None:
    """KIP-939, 'Recovery recipe': what the database names is committed by the next start, and nothing else is."""
    (example,) = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
    example = example.replace("broker:9092", broker.bootstrap)
    database = Database()
    committed = 0
    for crash, more in (("", 1), ("before", 0), ("", 1), ("after", 0), ("", 2)):
        database.crash = crash
        names = {"load": database.load, "save": database.save}
        if crash:
            with pytest.raises(CrashError):
                exec(example, names)  # noqa: S102 - our own page
        else:
            exec(example, names)  # noqa: S102 - our own page
        committed += more
        assert [record.value for record in read_topic(broker.bootstrap, "orders")] == [b"1"] * committed
