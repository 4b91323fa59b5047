"""A look at the records of a batch once Kafka has committed it: EndTxn asks no log whether they are still there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_2pc_sink.errors import BatchRetryError
from spark_2pc_sink.recipe.kept_records import WrittenRecords, find_lost_records, missing_id_topics

if TYPE_CHECKING:
    from jdbc_state.sink_log import SinkLog
    from spark_2pc_sink.recovery.kafka_side import KafkaSide


class KeptCheck:
    """Looks at the logs of each batch, for one run of a query.

    Args:
        kafka: the brokers.
        log: of the driver; told once of topics without an id.
    """

    def __init__(self, kafka: KafkaSide, log: SinkLog) -> None:
        self._kafka = kafka
        self._log = log
        self._told_of_ids = False

    def see(self, written: WrittenRecords) -> None:
        """See that the records are there: a topic that was deleted meanwhile, or made anew, has taken them with it.

        Raises:
            BatchRetryError: they are not. Recovery asks once more, and is the one that says so: a broker may be behind
                the others.
        """
        if not self._told_of_ids and (without := missing_id_topics(written)):
            self._told_of_ids = True
            unseen = "a topic that is deleted and made anew in the middle of a batch is only noticed by its offsets"
            self._log.warning("Kafka gives topic %s no id: %s", ", ".join(without), unseen)
        lost = find_lost_records(written, self._kafka.view_logs(written.offsets), committed=True)
        if lost is not None:
            raise BatchRetryError(reason=f"{lost.reason}; looking again")
