"""A service as a process of its own, which kills itself at a step of a transaction."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.orm import Session

from spark_2pc_sink import DualWrite
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.service.id_writer import IdWriter
from spark_2pc_sink.service.service import Commitment
from tests.integration.service.conftest import Order, engine_for

#: The steps after which a process may die, in their order, and whether the transaction is decided then.
STEPS: Final = {"sent": False, "decide": False, "commit": True, "complete": True}
_DEADLINE_S: Final = 90
#: Where each step has ended: the method, and whether it is over when the method begins.
_ENDS: Final[dict[str, tuple[type[Any], str, bool]]] = {
    "sent": (IdWriter, "send", False),
    "decide": (Commitment, "decide", False),
    "commit": (IdWriter, "decided", True),
    "complete": (TransactionClient, "end", False),
}
#: The same where blocks return before Kafka has followed: nobody waits for EndTxn's answer.
_BACKGROUND_ENDS: Final = _ENDS | {"complete": (TransactionClient, "begin_end", False)}


@dataclass(frozen=True)
class ServiceRun:
    """One process of the service.

    Attributes:
        options: of `DualWrite`.
        database: of the rows.
        topic: of the records.
        names: of its transactions, one after the other.
        dies_after: the step of the last one after which it dies; '' for none.
    """

    options: dict[str, Any]
    database: str
    topic: str
    names: tuple[str, ...]
    dies_after: str = ""


def run_to_its_end(run: ServiceRun) -> None:
    """Start the process, and wait until it has ended as it should."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_serve, args=(run,))
    process.start()
    process.join(_DEADLINE_S)
    ended, code = not process.is_alive(), process.exitcode
    process.kill()
    process.join()
    process.close()
    assert (ended, code) == (True, -signal.SIGKILL if run.dies_after else 0)


def _serve(run: ServiceRun) -> None:
    with engine_for(run.database) as engine, DualWrite(**run.options) as dual:
        for name in run.names:
            if run.dies_after and name == run.names[-1]:
                in_background = run.options.get("kafka_commit") == "in_background"
                _die_after((_BACKGROUND_ENDS if in_background else _ENDS)[run.dies_after])
            with Session(engine) as session, dual.transaction(session) as tx:
                session.add(Order(id=name))
                tx.send(run.topic, name, name)


def _die_after(end: tuple[type[Any], str, bool]) -> None:
    kind, name, at_begin = end
    method: Callable[..., Any] = getattr(kind, name)

    def dying(*args: Any, **given: Any) -> None:
        if not at_begin:
            method(*args, **given)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(kind, name, dying)
