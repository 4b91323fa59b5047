"""Run orders_stream.py, and die in the middle of a batch: by SIGKILL, at a place given by name.

    python examples/_killed_job.py DECIDE 2 --events … (the job's own arguments)

dies when the sink reaches the step ``DECIDE`` for the second time: the second batch is committed in the database, and
not yet in Kafka. The steps are those of ``spark_2pc_sink.recipe.steps``. This is for orders_demo.py, and reaches
into the sink as no job should. It kills its whole process group, so that Spark's Java process dies in the same moment,
as it does when a machine is lost: start it in a group of its own.
"""

from __future__ import annotations

import os
import signal
import sys

import orders_stream
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.driver import step_observer


class KillAt:
    """Takes the place of the sink's observer, and kills when a step is reached for the n-th time.

    Args:
        step: where.
        times: n.
    """

    def __init__(self, step: Step, times: int) -> None:
        self._step = step
        self._times_left = times

    def __call__(self, step: Step) -> None:
        """The sink has reached ``step``."""
        if step is not self._step:
            return
        self._times_left -= 1
        if not self._times_left:
            os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    step_observer.reached = KillAt(Step[sys.argv[1]], int(sys.argv[2]))
    sys.exit(orders_stream.main(sys.argv[3:]))
