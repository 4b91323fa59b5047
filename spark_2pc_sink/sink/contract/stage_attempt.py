"""The attempt of a task and of its stage, read from the name of a JVM thread.

Only the first attempt of a task in the first attempt of its stage may write: a rewrite from sequence 0 would be
answered "duplicate, success" by the broker, and the rows that it replaces would be lost. PySpark's TaskContext shows
the task's attempt but not the stage's (after a FetchFailed the retry has attempt number 0 and the same stage id), so
the plan carries the name that Spark gives to the executor's thread: ``task I.A in stage S.B (TID n)``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Evaluated by the JVM in the task, for the first row of each partition only: the lower 33 bits of
#: monotonically_increasing_id() count the rows of a partition, and a reflective call for each row would be slow.
ATTEMPT_SQL = (
    "CASE WHEN (monotonically_increasing_id() & 8589934591L) = 0 THEN reflect('java.lang.Thread', 'currentThread') END"
)

_THREAD_NAME = re.compile(
    r"task (?P<index>\d+)\.(?P<attempt>\d+) in stage (?P<stage>\d+)\.(?P<stage_attempt>\d+) \(TID"
)


@dataclass(frozen=True)
class TaskAttempt:
    """The attempt of a task and of its stage; both are 0 for the first."""

    task_attempt: int
    stage_attempt: int

    @property
    def first(self) -> bool:
        """True for the only attempt that may write."""
        return self.task_attempt == 0 and self.stage_attempt == 0

    def __str__(self) -> str:
        return f"attempt {self.task_attempt} of the task in attempt {self.stage_attempt} of its stage"


def parse_thread_name(text: str | None) -> TaskAttempt | None:
    """Read an executor's thread name; None where it does not have Spark's form."""
    found = _THREAD_NAME.search(text or "")
    if found is None:
        return None
    return TaskAttempt(int(found["attempt"]), int(found["stage_attempt"]))
