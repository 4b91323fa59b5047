"""Common base of `DualWrite` and `AsyncDualWrite`: their options, and the process that both represent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.options import ServiceOptions, checks_keywords
from spark_2pc_sink.service.service import Service
from spark_2pc_sink.service.transaction import OpenBlocks

if TYPE_CHECKING:
    from spark_2pc_sink.service.commitment import Commitment

_log = sink_log(__name__)


class ServiceBase:
    """The options of a service, and its one process. Constructing it does no I/O.

    Args:
        transactional_id: the name of the service.
        kafka: Kafka client properties.
        database: SQLAlchemy URL, dialect postgresql, driver psycopg2: for the state rows. Their passwords may come from
            `database_password` or `password_command`; those of the session are configured in its engine.

    The other options are described in docs/reference/options.md.

    Raises:
        ConfigurationError: an option is unknown, missing or wrong.
    """

    @checks_keywords
    def __init__(
        self,
        *,
        transactional_id: str,
        kafka: Mapping[str, str | int | Callable[[str], Any]],
        database: str,
        ids: int = 8,
        ids_max: int = 64,
        wait_for_id_ms: int = 10_000,
        kafka_commit: Literal["before_return", "in_background"] = "before_return",
        takeover_grace_s: int = 60,
        database_password: Callable[[], str] | None = None,
        password_command: str | None = None,
        require_tls: bool = False,
        accept_database: str | None = None,
        state_schema: str = "public",
        state_table: str = "kafka_transaction_state",
        history_table: str | None = None,
        history_batches: int = 0,
        connect_timeout_s: int = 10,
        connect_deadline_ms: int = 30_000,
        claim_lock_timeout_ms: int = 2_000,
        claim_deadline_ms: int = 30_000,
        lock_timeout_ms: int = 30_000,
        statement_timeout_ms: int = 600_000,
        idle_in_transaction_timeout_ms: int = 60_000,
        commit_timeout_ms: int = 60_000,
        settle_deadline_ms: int = 120_000,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self._service = Service(ServiceOptions.parse(**given))
        self._blocks = OpenBlocks()
        # One more than there are ids, so that the holder of an id never waits for a thread. They are started on demand.
        self._threads = ThreadPoolExecutor(self._service.options.ids + 1, "spark_2pc_sink service")

    def _complete_in_background(self, commitment: Commitment) -> None:
        """Commit the decided transaction in Kafka without waiting; a thread does it if that takes several requests.

        At most ``ids`` of these run at once: an id is not used again before its answer has arrived.
        """
        if commitment.begin_completion():
            return
        try:
            done = self._threads.submit(commitment.complete_in_background)
        except RuntimeError:
            # The main thread has ended while this one still runs: Python starts no more threads for it.
            commitment.complete_in_background()
            return
        done.add_done_callback(_tell)


def _tell(done: Future[None]) -> None:
    """Log an error that was neither awaited nor explained: the keeper of the ids settles the transaction."""
    error = done.exception()
    if error is not None:
        _log.error("a decided transaction is not complete in Kafka yet: %r", error, exc_info=error)
