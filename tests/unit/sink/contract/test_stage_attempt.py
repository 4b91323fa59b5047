"""Reading the attempt of a task and of its stage from the name of the executor's thread."""

from __future__ import annotations

import pytest

from spark_2pc_sink.sink.contract.stage_attempt import ATTEMPT_SQL, TaskAttempt, parse_thread_name


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        ("Thread[Executor task launch worker for task 3.0 in stage 17.0 (TID 5),5,main]", TaskAttempt(0, 0)),
        ("Thread[#93,Executor task launch worker for task 3.1 in stage 17.0 (TID 25),5,main]", TaskAttempt(1, 0)),
        ("Executor task launch worker for task 0.0 in stage 2.3 (TID 99)", TaskAttempt(0, 3)),
    ],
)
def test_names_of_spark_4(name: str, attempt: TaskAttempt) -> None:
    """A5: the attempt of the stage is what TaskContext does not show."""
    assert parse_thread_name(name) == attempt
    assert attempt.first is (attempt == TaskAttempt(0, 0))


@pytest.mark.parametrize("name", [None, "", "main", "Executor task launch worker-1", "task 1 in stage 2 (TID 3)"])
def test_other_names_are_not_guessed_at(name: str | None) -> None:
    """Where it can't be read the sink asks for stages that never run again."""
    assert parse_thread_name(name) is None


def test_the_name_is_asked_for_once_per_partition() -> None:
    """A reflective call for each row would be slow."""
    assert "monotonically_increasing_id()" in ATTEMPT_SQL
    assert str(TaskAttempt(0, 1)) == "attempt 0 of the task in attempt 1 of its stage"
