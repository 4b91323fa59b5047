"""The example of Spark Connect, whose server or client dies in the second batch: a client, and the sink it hands over.

python -m tests.harness.connect_job server|client STEP … (the example's own arguments)
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.testing.processes import signal_all
from tests.harness import ROOT
from tests.harness.acts import act_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FatalSink(DualWriteSink):
    """Kills the server beside which it writes, or the client that has started the query."""

    fatal = Step.DECIDE
    #: Process id of a client on this machine; 0 where the server is to die.
    client = 0

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            # The server's process leads its session, to which the Python processes beside it belong.
            victims = [self.client] if self.client else [os.getsid(0), os.getpid()]
            act_at(self.fatal, 2, lambda: signal_all(victims, signal.SIGKILL))
        super().__call__(batch, batch_id)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"fatal": self.fatal, "client": self.client}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fatal, self.client = state["fatal"], state["client"]
        super().__setstate__(state)


def main(victim: str, step: str, *arguments: str) -> None:
    sys.path.append(str(ROOT / "examples"))
    import connect_orders  # noqa: PLC0415 - not importable before

    # By its full name: the server imports it from there.
    from tests.harness.connect_job import FatalSink as Importable  # noqa: PLC0415

    Importable.fatal = Step[step]
    Importable.client = os.getpid() if victim == "client" else 0
    vars(connect_orders)["DualWriteSink"] = Importable
    connect_orders.main(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
