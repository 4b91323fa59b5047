"""A setting of the stream's session that the user may have made himself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_2pc_sink.sink.job.waves import WAVES, cut_files


class Settings(dict[str, str]):
    def set(self, name: str, value: str) -> None:
        self[name] = value


@pytest.mark.parametrize(("given", "expected"), [({}, str(3 * WAVES)), ({"spark.sql.files.minPartitionNum": "5"}, "5")])
def test_files_are_read_in_as_many_parts_as_there_are_tasks(given: dict[str, str], expected: str) -> None:
    session: Any = SimpleNamespace(conf=Settings(given), sparkContext=SimpleNamespace(defaultParallelism=3))
    cut_files(session)
    assert session.conf == {"spark.sql.files.minPartitionNum": expected}
