"""kafka-python's event loop, with interruptions that come out of it.

Its tasks keep every exception, also that of Ctrl-C and of the program's end: whoever was interrupted in one would wait
on, as if nobody had asked him to stop.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from spark_2pc_sink.errors import KafkaTimeoutError

if TYPE_CHECKING:

    class NetworkSelector:
        """kafka-python has no type information: this is said of its class here."""

        def __init__(self, **configs: Any) -> None: ...
        def _task_done(self, task: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    from kafka.net.selector import NetworkSelector


class NetworkLoop(NetworkSelector):
    """What waits for the sockets; it has files of its own.

    Raises:
        KafkaTimeoutError: the process has as many files open as it may.
    """

    def __init__(self) -> None:
        try:
            # kafka-python warns when one step takes 0.1 s; a garbage collection in a Spark worker does that.
            super().__init__(slow_task_threshold_secs=0)
        except OSError as error:
            raise KafkaTimeoutError(
                operation="making connections to Kafka",
                deadline_ms=0,
                last_error=f"{error}; raise the limit of open files (ulimit -n) of this process",
            ) from error

    def _task_done(self, task: Any) -> None:
        super()._task_done(task)
        ended_by = sys.exc_info()[1]
        if isinstance(ended_by, KeyboardInterrupt | SystemExit):
            raise ended_by
