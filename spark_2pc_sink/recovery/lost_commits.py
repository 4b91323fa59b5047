"""Lost commits: Kafka has batches that the database lacks. The logs of the state row's topics show them.

Recovery uses it when Kafka shows a commit that the row lacks, the driver when Spark's next batch does not follow the
row's. Both end in a halt that names the missing batches, or in the operator's decision about them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from jdbc_state import DONE, NONE, OWED
from jdbc_state.sink_log import sink_log
from spark_2pc_sink.choices import HaltCause
from spark_2pc_sink.errors import KafkaError, KafkaTimeoutError, StateStoreError
from spark_2pc_sink.ids import BatchRange, PreparedTxnState, ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.log_reader import CommitQuery
from spark_2pc_sink.recipe.lost_batches import FoundCommits, LostBatches
from spark_2pc_sink.recipe.resolve import Halt
from spark_2pc_sink.recovery.report import Action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jdbc_state import StateRow, StateStore
    from spark_2pc_sink.errors import HaltError
    from spark_2pc_sink.options import CommonOptions
    from spark_2pc_sink.recovery.kafka_side import KafkaSide


#: Limits of time and bytes for reading logs for a message that a person waits for: more than most sinks write in the
#: minutes after a backup.
SCAN_MS_MAX: Final = 30_000
SCAN_BYTES_MAX: Final = 512 * 1024 * 1024
#: The same for a start without signs of a loss. Mostly only an end marker has been written since.
START_SCAN_MS_MAX: Final = 5_000
START_SCAN_BYTES_MAX: Final = 64 * 1024 * 1024
#: Records have timestamps of the driver's clock, the row those of the database.
_CLOCKS_DIFFER_MS: Final = 600_000


class LostCommits:
    """The batches of one sink that the database lacks, and the operator's decision about them."""

    def __init__(self, options: CommonOptions, kafka: KafkaSide, store: StateStore, *, topics: Iterable[str]) -> None:
        self._log = sink_log(__name__, options.transactional_id)
        self._kafka = kafka
        self._store = store
        self._topics = frozenset(topics)
        self._limit_ms = min(options.settle_deadline_ms, SCAN_MS_MAX)
        self.accepted: BatchRange | None = options.accept_loss

    def name(self, error: HaltError) -> HaltError:
        """Complete the error of a driver whose claim the database has lost with its other losses."""
        if error.cause is not HaltCause.COMMITS_LOST:
            return error
        try:
            row = self._store.read(error.transactional_id)
            return error if row is None else _named(error, self.look(row))
        except (KafkaError, KafkaTimeoutError, StateStoreError) as second:
            self._log.warning("could not determine the lost batches: %s", second)
            return error

    def shows(self, row: StateRow) -> bool:
        """Whether the logs show a commit that the row lacks, within the reading limits of a start."""
        found = self.look(row, limit_ms=START_SCAN_MS_MAX, bytes_max=START_SCAN_BYTES_MAX).found
        if found.unread:
            self._log.info("did not check whether the database lacks batches of %s", "; ".join(found.unread))
        return bool(found.transactions)

    def nothing_is_lost(self, row: StateRow) -> bool:
        """Whether the operator says that a commit which the row lacks is not of a batch; the logs must agree."""
        if self.accepted is None or len(self.accepted):
            return False
        self.look(row).check(self.accepted)
        return True

    def pass_over_unread(self, row: StateRow, actions: list[Action]) -> StateRow:
        """Continue after a named loss that only the job sees, as a gap: Kafka does not show it, the logs are unread.

        If they were read and show no loss, there is none, and a batch that was named nevertheless is still expected.
        """
        named = self.accepted
        # The database has a batch that Kafka is owed: it is not lost, and giving it up needs another decision, to drop.
        if named is None or not len(named) or row.status in (NONE, OWED):
            return row
        if row.status == DONE and row.batch_id == named.last:
            return row
        lost = self.look(row)
        return self.pass_over(row, lost, named, actions) if lost.found.unread else row

    def pass_gap(self, row: StateRow, batch_id: int, error: HaltError) -> StateRow:
        """Continue after the batches between the row's and the one that Spark has passed.

        Raises:
            HaltError: they were not named; it lists them.
            ConfigurationError: the named batches are not the missing ones; nothing was changed.
        """
        known = row.batch_id is not None
        if self.accepted is None and (not known or error.cause is HaltCause.NOT_HANDED_OVER):
            # Nothing could be counted, or nothing is lost: Spark has finished these batches without the sink.
            raise error
        # A row without batches has no offsets from which they could be counted.
        lost = self.look(row, batch_id) if known else LostBatches(first=0, came=batch_id)
        if self.accepted is None:
            raise _named(error, lost)
        actions: list[Action] = []
        row = self.pass_over(row, lost, self.accepted, actions)
        self._log.warning("%s", "; ".join(map(str, actions)))
        return row

    def pass_over(self, row: StateRow, lost: LostBatches, named: BatchRange, actions: list[Action]) -> StateRow:
        """Continue after the batches that the operator has named."""
        lost.check(named)
        transactions = lost.found.transactions
        newer = {str(partition): at for each in transactions for partition, at in each.offsets.items()}
        # A query that has adopted the row of another one counts its own batches from 0.
        foreign = row.batch_id is None and row.status != NONE and lost.came is None
        shown = self._kafka.describe().producer
        listed = "; ".join(map(str, transactions)) or "nothing"
        did = (
            f"continued without batches {named}, named by the operator as lost in the database; the logs have {listed}"
        )
        passed = self._store.accept_loss(
            row.transactional_id,
            row.generation,
            row.settled if shown is None else str(shown),
            batch_id=None if foreign else named.last,
            record_count=max([1, *(transaction.records for transaction in transactions[-1:])]),
            kafka_offsets={**row.kafka_offsets, **newer},
            detail={"did": did, "batches": str(named)},
        )
        actions.append(Action("accept_loss", did))
        return passed

    def look(
        self,
        row: StateRow,
        came: int | None = None,
        *,
        limit_ms: int = SCAN_MS_MAX,
        bytes_max: int = SCAN_BYTES_MAX,
    ) -> LostBatches:
        """Read what Kafka has committed since the row."""
        shown = self._kafka.describe().producer
        offsets = {TopicPartition.parse(name): last for name, (_, last) in row.kafka_offsets.items()}
        settled = PreparedTxnState(row.settled).producer
        settled_at = row.settled_at or row.decided_at
        query = CommitQuery(
            after=offsets,
            since_ms=None if settled_at is None else int(settled_at.timestamp() * 1000) - _CLOCKS_DIFFER_MS,
            newer_than=PreparedTxnState(row.prepared_transaction_state).producer or _before(settled),
            producer_ids=frozenset(pair.producer_id for pair in (settled, shown) if pair is not None),
        )
        topics = {*self._topics, *row.topic_ids, *(partition.topic for partition in offsets)}
        found = FoundCommits(unread=("the state row names no topic",))
        try:
            if topics:
                limit_ms = min(limit_ms, self._limit_ms)
                found = self._kafka.find_commits(query, topics, limit_ms=limit_ms, bytes_max=bytes_max)
        except (KafkaError, KafkaTimeoutError) as error:
            # An operator's decision must not wait for a topic; the message says that it was not read.
            found = FoundCommits(unread=(f"{', '.join(sorted(topics))} ({error})",))
        return LostBatches(0 if row.batch_id is None else row.batch_id + (row.status != OWED), found, came)


def _before(settled: ProducerIdAndEpoch | None) -> ProducerIdAndEpoch | None:
    """The newest epoch that a row without a decision may lack: its first recovery took the one after it."""
    if settled is None or settled.epoch == 0:
        return None
    return ProducerIdAndEpoch(settled.producer_id, settled.epoch - 1)


def _named(error: HaltError, lost: LostBatches) -> HaltError:
    explained = lost.explain(Halt(error.cause, error.reason, error.facts))
    return replace(error, reason=explained.reason, facts=explained.facts, remedies=())
