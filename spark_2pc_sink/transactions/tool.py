"""The transaction tool: an operator's actions on a cluster's transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from spark_2pc_sink.clock import now_ms
from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import AbortRefusedError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster, unknown_topic
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.kafka.transaction_client import DEFAULT_MAX_TIMEOUT_MS
from spark_2pc_sink.kafka.transaction_queries import (
    AbortedOpenTransaction,
    HangingTransaction,
    ListFilter,
    ProducerDetails,
    TerminatedTransaction,
    TransactionDetails,
    TransactionListing,
    TransactionQueries,
)
from spark_2pc_sink.options import KafkaOptions, RecoveryOptions, checks_keywords
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.recovery.api import open_store
from spark_2pc_sink.recovery.report import kafka_connection
from spark_2pc_sink.transactions import ending

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class TransactionTool:
    """Inspects a cluster's transactions, and ends those that must be ended manually. Use it with ``with``.

    Args:
        kafka: Kafka client properties, as for the sink.
        now_ms: the current time, in milliseconds since 1970; for durations.

    Raises:
        ConfigurationError: a property is unknown or wrong.
    """

    @checks_keywords
    def __init__(
        self, *, kafka: Mapping[str, str | int | Callable[[str], Any]], now_ms: Callable[[], int] = now_ms
    ) -> None:
        self._kafka = KafkaOptions.parse(kafka)
        self._cluster = Cluster(self._kafka)
        self._queries = TransactionQueries(self._cluster, now_ms)

    def __enter__(self) -> TransactionTool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def list_transactions(self, wanted: ListFilter | None = None) -> tuple[TransactionListing, ...]:
        """The transactional ids that we may describe, of every coordinator, or of one (KIP-664, KIP-994, KIP-1152).

        Raises:
            ConfigurationError: a filter is invalid.
            KafkaError, KafkaTimeoutError: a broker refused, or did not answer.
        """
        chosen = wanted or ListFilter()
        for producer_id in chosen.producer_ids:
            _check_range("producer_id", producer_id, _INT64_MAX)
        self._check_broker(chosen.broker_id)
        return self._queries.listings(chosen)

    def describe(self, transactional_id: str) -> TransactionDetails:
        """One transactional id, as described by its coordinator.

        Raises:
            KafkaError: its coordinator does not know it (code 105), or refused.
            KafkaTimeoutError: its coordinator did not answer.
        """
        _check_given("transactional_id", transactional_id)
        found = self._queries.details(transactional_id)
        if found is None:
            raise kafka_error(
                "DescribeTransactions",
                Code.TRANSACTIONAL_ID_NOT_FOUND,
                f"its coordinator does not know {transactional_id!r}; Kafka forgets an id after a week without use",
            )
        return found

    def describe_producers(
        self, topic: str, partition: int, *, broker_id: int | None = None
    ) -> tuple[ProducerDetails, ...]:
        """The producers remembered by a partition, with their open transactions.

        Args:
            topic: topic name.
            partition: partition number.
            broker_id: the replica to ask; the leader if None.

        Raises:
            UnknownTopicError: no such partition, or no replica on that broker.
            KafkaError, KafkaTimeoutError: the broker refused (READ on the topic), or did not answer.
        """
        where = _partition(topic, partition)
        self._check_broker(broker_id)
        found = self._queries.producers([where], broker_id=broker_id)
        if where not in found:
            raise unknown_topic(topic, _missing(partition, broker_id))
        return tuple(
            ProducerDetails(
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                coordinator_epoch=state.coordinator_epoch,
                last_sequence=state.last_sequence,
                last_timestamp_ms=state.last_timestamp,
                start_offset=state.current_txn_start_offset if state.current_txn_start_offset >= 0 else None,
            )
            for state in sorted(found[where], key=lambda state: state.producer_id)
        )

    def find_hanging(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        broker_id: int | None = None,
        max_timeout_ms: int = DEFAULT_MAX_TIMEOUT_MS,
    ) -> tuple[HangingTransaction, ...]:
        """Open transactions that no coordinator will end (KIP-664); see `spark_2pc_sink.transactions.ending`.

        Args:
            topic: only this topic; every topic of the cluster if None.
            partition: only this partition, of ``topic``.
            broker_id: only partitions with a replica on this broker, as it reports them.
            max_timeout_ms: minimum age of the last record.

        Raises:
            ConfigurationError: an argument is invalid.
            UnknownTopicError: no such partition.
            AuthorizationError: a topic may not be read, or transactional ids are hidden from us.
            KafkaError, KafkaTimeoutError: a broker refused, or did not answer; no result is certain then.
        """
        _check_range("max_timeout_ms", max_timeout_ms, _INT64_MAX)
        if partition is not None and topic is None:
            raise refused("partition", partition, "requires a topic", "pass the topic too")
        self._check_broker(broker_id)
        searched = self._queries.partitions(topic, broker_id)
        if topic is not None and partition is not None:
            where = _partition(topic, partition)
            if where not in searched:
                raise unknown_topic(topic, _missing(partition, broker_id))
            searched = (where,)
        now_ms = self._queries.now_ms()
        seen = ending.open_transactions(self._queries.producers(searched, broker_id=broker_id))
        old = [found for found, last_ms in seen.items() if now_ms - last_ms > max_timeout_ms]
        owners = ending.owners_of(self._queries, old)
        suspected = {
            found: reason for found, owner in owners.items() if (reason := ending.why_hanging(found, owner)) is not None
        }
        # A transaction ended between the two checks was not hanging: a hanging one is still open now.
        again = self._queries.producers({found.where for found in suspected}, broker_id=broker_id)
        still_open = {found.identity for found in ending.open_transactions(again)}
        return tuple(
            HangingTransaction(
                **vars(found), last_timestamp_ms=seen[found], duration_ms=now_ms - seen[found], reason=reason
            )
            for found, reason in suspected.items()
            if found.identity in still_open
        )

    def abort(
        self,
        topic: str,
        partition: int,
        *,
        start_offset: int | None = None,
        producer: ProducerIdAndEpoch | None = None,
        coordinator_epoch: int | None = None,
    ) -> AbortedOpenTransaction:
        """End a hanging transaction in one partition; see `spark_2pc_sink.transactions.ending`.

        Args:
            topic: topic name.
            partition: partition number.
            start_offset: the transaction's first offset; alternatively
            producer: its pair.
            coordinator_epoch: for the marker; the leader's last known one if None.

        Raises:
            ConfigurationError: an argument is invalid, or no such transaction is open there. Nothing was written.
            AbortRefusedError: its coordinator knows it, or it changed between two checks. Nothing was written.
            KafkaError: the leader refused the marker: code 47 if a newer epoch of the producer has written since, 52
                if the coordinator epoch is too old.
            OutcomeUnknownError: the answers to several markers were lost.
            AuthorizationError, KafkaTimeoutError: a broker was unreachable or refused. Nothing was written.
        """
        where = _partition(topic, partition)
        if (start_offset is None) == (producer is None):
            rule = "exactly one of start offset and producer must identify the transaction"
            raise refused("start_offset", start_offset, rule, "pass what find-hanging shows as StartOffset")
        if start_offset is not None:
            _check_range("start_offset", start_offset, _INT64_MAX)
        if coordinator_epoch is not None and coordinator_epoch > _INT32_MAX:  # below, the leader's own is used
            _check_range("coordinator_epoch", coordinator_epoch, _INT32_MAX)
        try:
            return ending.abort(self._queries, ending.AbortTarget(where, start_offset, producer, coordinator_epoch))
        except AbortRefusedError as error:
            remedies = ending.with_cluster(error.remedies, kafka_connection(self._kafka))
            raise replace(error, remedies=remedies) from error

    def force_terminate(
        self,
        transactional_id: str,
        *,
        database: str | None = None,
        reason: str | None = None,
        state_schema: str = "public",
        state_table: str = "kafka_transaction_state",
    ) -> TerminatedTransaction:
        """Abort the id's transaction and fence its producer; see `spark_2pc_sink.transactions.ending`.

        Args:
            transactional_id: any transactional id.
            database: SQLAlchemy URL of the database that records it, see `spark_2pc_sink.transactions.ending`; None
                not to record it.
            reason: the reason, for that record.
            state_schema: schema of the sinks' tables there.
            state_table: the sinks' state table; the record goes to the table with this name plus ``_actions``.

        Raises:
            ConfigurationError: no coordinator lists the id, which InitProducerId would create; or a reason is given
                without a database. Nothing was changed.
            StateStoreError: it cannot be recorded; the coordinator was not asked.
            KafkaError: the coordinator refused.
            OutcomeUnknownError: the transaction was still being aborted at the deadline.
            AuthorizationError, KafkaTimeoutError: a broker was unreachable or refused. Nothing was changed.
        """
        _check_given("transactional_id", transactional_id)
        if database is None:
            if reason is not None:
                raise refused("reason", reason, "requires a database to record it in", "pass database= too, or omit it")
            return ending.force_terminate(self._queries, transactional_id)
        # The given id may be invalid for a sink.
        options = RecoveryOptions.of_every_sink(
            kafka=self._kafka, database=database, reason=reason, state_schema=state_schema, state_table=state_table
        )
        with closing(open_store(options)) as store:
            return ending.force_terminate_recorded(self._queries, transactional_id, store)

    def _check_broker(self, broker_id: int | None) -> None:
        if broker_id is not None and broker_id not in (known := self._cluster.node_ids()):
            remedy = f"the cluster has the brokers {', '.join(map(str, sorted(known)))}"
            raise refused("broker_id", broker_id, "must be a running broker of the cluster", remedy)


def _partition(topic: str, partition: int) -> TopicPartition:
    _check_given("topic", topic)
    _check_range("partition", partition, _INT32_MAX)
    return TopicPartition(topic, partition)


def _missing(partition: int, broker_id: int | None) -> str:
    at = "" if broker_id is None else f" with a replica on broker {broker_id}"
    return f"partition {partition} does not exist{at}"


def _check_given(option: str, value: str) -> None:
    if not value:
        raise refused(option, value, "must not be empty", "pass its name")


def _check_range(option: str, value: int, largest: int) -> None:
    if not 0 <= value <= largest:
        raise refused(option, value, f"must be from 0 to {largest}", "pass a number in that range")
