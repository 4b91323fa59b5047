"""What a Python worker process of Spark is spared, however many tasks it runs."""

from __future__ import annotations

import gc
import sys


class Collector:
    """The garbage collector of a worker process.

    Spark's daemon collects all garbage of a worker behind each task (``pyspark/daemon.py``), and the next task waits
    for it. Looking through the modules of PySpark, Arrow and pandas, which stay for as long as the process does, takes
    60 ms each time.
    """

    def __init__(self) -> None:
        self._modules = 0

    def spare(self) -> None:
        """Leave out of further collections what is there now, if anything was imported since the last time.

        Right after a collection little of it is garbage. What is frozen is never freed, so not before every task.
        """
        modules = len(sys.modules)
        if modules > self._modules:
            gc.freeze()
            self._modules = modules


#: Of this process.
COLLECTOR = Collector()
