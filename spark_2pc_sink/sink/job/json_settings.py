"""The session's settings that change the result of ``to_json``; a job may set them at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.sink.contract.record_json import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from spark_2pc_sink.sink.job.session_facts import SessionFacts


class JsonSettings:
    """Asks the session of each batch of one run.

    Args:
        transactional_id: of the sink, for its log.
        facts: of the session.
    """

    def __init__(self, transactional_id: str, facts: SessionFacts) -> None:
        self._facts = facts
        self._log = sink_log(__name__, transactional_id)
        self._everything: str | None = None
        self._values: dict[str, str] | None = None

    def now(self, spark: SparkSession) -> Mapping[str, str]:
        """The values of `SETTINGS`, each asked for again only where any setting of the session has changed."""
        # All that were ever set, in one text: each of ours by itself would cost a call to the JVM in every batch.
        everything = self._facts.settings_of(spark)
        if self._values is None or everything is None or everything != self._everything:
            # Without a default of ours: Spark has one, and refuses those that the setting does not allow.
            values = {name: str(spark.conf.get(name)) for name in SETTINGS}
            self._warn_of_changes(values)
            self._everything, self._values = everything, values
        return self._values

    def _warn_of_changes(self, values: Mapping[str, str]) -> None:
        """Say what a replay of earlier batches may be refused for."""
        for name, before in (self._values or {}).items():
            if values[name] != before:
                self._log.warning(
                    "%s was %s and is now %s: from this batch on to_json may write other text, and a batch from "
                    "before that Spark replays is refused where it does",
                    name,
                    before,
                    values[name],
                )
