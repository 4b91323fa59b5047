"""The transaction coordinator with its log: the shell that carries out what the pure coordinator plans.

For each event, in the order that `coordinator.plans` prescribes: step and reserve, without a wait in between; append
the plan's record to its partition of ``__transaction_state`` and wait until it is durable; settle; answer; then the
effects. This also orders durability across logs. Markers are appended once the Prepare record is durable, and the
Complete record once the markers are: the other way round a power loss could leave a decision without its cause.

Only the record that adds a partition for its own leader is not waited for (`TransactionService.add`); what a power
loss then removes, `TransactionService.load` adds again (`machine.unrecorded`).

`Verification` is the leader's side: before a transaction's first record in a partition it has the coordinator add the
partition, or verify that the client did (KIP-890, 2 and 3; `coordinator.add_partitions`).

Takeovers of an id, and ends of transactions that their client did not end, are logged at INFO; events of every
transaction at DEBUG. Added partitions are not logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.coordinator import add_partitions, end_txn, machine, plans, states
from spark_2pc_sink.reference.coordinator.events import AddPartitionsToTxn, Event, MarkersAnswered
from spark_2pc_sink.reference.coordinator.plans import EndMarker, Plan, Reply, SendMarkers
from spark_2pc_sink.reference.coordinator.states import CoordinatorState, Pair, Settings, StateId, TransactionMetadata
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS, TRANSACTION_STATE
from spark_2pc_sink.reference.log.partition_log import PartitionLog
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.storage.segmented_log import Synced

#: How long `Background.stop` lets work finish before cancelling it, in milliseconds. Whatever is cancelled must be
#: resumed by the next start.
STOP_WAIT_MS_MAX = 2_000


class Background:
    """One owner's tasks. They are kept referenced, because the event loop does not do so."""

    def __init__(self) -> None:
        self._work: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.Task[None]] = set()
        self._stopped = False

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that ends by itself, at the caller's next wait: after the reply. Nothing after `stop`."""
        if self._stopped:
            work.close()
        else:
            _keep(self._work, work)

    def every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat ``work`` until `stop`, after each pause of ``interval_ms``; also after a failure, as in Kafka."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                (failure,) = await asyncio.gather(work(), return_exceptions=True)
                if failure is not None:
                    _log.error("background work failed; retrying in %d ms", interval_ms, exc_info=failure)

        _keep(self._timers, repeat())

    async def stop(self) -> None:
        for task in self._timers:
            task.cancel()
        if self._work:
            await asyncio.wait(self._work, timeout=STOP_WAIT_MS_MAX / 1000)
        self._stopped = True
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._timers, *self._work, return_exceptions=True)


def _keep(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _log_change(plan: Plan, before: TransactionMetadata, after: TransactionMetadata | None) -> None:
    """Log a plan whose record is durable; ``after`` is the id's new state, or None if it was removed."""
    level, what = logging.DEBUG, ""
    if after is None:
        what = "removed after transactional.id.expiration.ms"
    elif after.state is StateId.EMPTY:
        level, what = logging.INFO, "InitProducerId"
    elif after.kept:
        level, what = logging.INFO, "InitProducerId kept the prepared transaction"
    elif after.state in states.DECIDED:
        what = "commit decided" if after.state is StateId.PREPARE_COMMIT else "abort decided"
        if plan.reply is None:
            level, what = logging.INFO, "timed out"
        elif isinstance(plan.reply, plans.InitProducerIdReply):
            level, what = logging.INFO, "aborted by InitProducerId, which fenced its producer"
    elif before.state in states.COMPLETION:
        what = "completed"
    if what and _log.isEnabledFor(level):
        rotated = after is not None and after.client_pair.producer_id != before.client_pair.producer_id
        shown = f"{_shown(before)}{'' if after is None else f' -> {_shown(after)}'}"
        _log.log(level, "%s: %s, %s%s", before.transactional_id, what, shown, ", new producer id" if rotated else "")


def _shown(metadata: TransactionMetadata) -> str:
    pair, client = metadata.pair, metadata.client_pair
    held = f" (client {client.producer_id}:{client.epoch})" if client != pair else ""
    return f"{metadata.state.label} {pair.producer_id}:{pair.epoch}{held}"


@dataclass(frozen=True)
class MarkerWriter:
    """End markers on the partitions of this node, for the coordinator and for WriteTxnMarkers.

    ``on_group_marker`` is called for each marker in ``__consumer_offsets`` as it is appended, in log order, with
    partition, producer id and whether it commits; readers of the offsets wait for the disk.
    """

    catalog: Catalog
    on_group_marker: Callable[[int, int, bool], None]
    now_ms: Callable[[], int]

    async def write(self, marker: EndMarker, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Append to all partitions at once, then wait: 0 for each, or 3 if this node does not have the partition."""
        now_ms = self.now_ms()
        results: dict[TopicPartition, int] = {}
        written: dict[TopicPartition, PartitionLog] = {}
        for partition in partitions:
            log = self.catalog.log(partition.topic, partition.partition)
            unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
            results[partition] = unknown if log is None else log.append_marker(marker, now_ms=now_ms)
            if log is not None and results[partition] == Code.NONE:
                written[partition] = log
                if partition.topic == GROUP_OFFSETS:
                    self.on_group_marker(partition.partition, marker.producer_id, marker.commit)
        results.update(zip(written, await synced(written.values()), strict=True))
        return results


async def synced(logs: Iterable[PartitionLog]) -> list[int]:
    """Wait until appended records of these logs are durable: 0 for each, or KAFKA_STORAGE_ERROR."""
    begun = [log.flush() for log in logs]  # start all of them, before waiting for the first
    return [Code.NONE if await future is None else Code.KAFKA_STORAGE_ERROR for future in begun]


_log = logging.getLogger(__name__)

#: Pause before a marker or a completing record is retried, in milliseconds. Retries are unlimited: a decided
#: transaction must be ended, and only a failing disk makes an attempt fail.
RETRY_PAUSE_MS = 100

_PROFILES: Final = {"bump": states.Profile.KEEP_PREPARED, "unchanged": states.Profile.KEEP_UNCHANGED}


def settings_of(properties: BrokerProperties, *, transaction_version: int, offsets_partition_count: int) -> Settings:
    """The coordinator's settings; the level may differ from the property, and the number of partitions too."""
    keeping = _PROFILES[properties.transaction_keep_prepared_form]
    return Settings(
        profile=keeping if properties.transaction_keep_prepared_enable else states.Profile.AS_RELEASED,
        transaction_version=transaction_version,
        keep_prepared_version=properties.transaction_keep_prepared_version,
        fences_late_commits=properties.transaction_late_commit_fenced_enable,
        two_phase_commit_enable=properties.transaction_two_phase_commit_enable,
        transaction_max_timeout_ms=properties.transaction_max_timeout_ms,
        transactional_id_expiration_ms=properties.transactional_id_expiration_ms,
        offsets_partition_count=offsets_partition_count,
    )


class TransactionService:
    """The coordinator of every transactional id. `load`, `start`, any number of `submit`, `stop`."""

    def __init__(
        self,
        catalog: Catalog,
        markers: MarkerWriter,
        *,
        settings: Settings,
        properties: BrokerProperties,
        now_ms: Callable[[], int],
    ) -> None:
        topic = catalog.topic(TRANSACTION_STATE)
        assert topic is not None, "created before the coordinators"
        self.state: CoordinatorState = CoordinatorState.new(settings, partition_count=topic.partitions)
        self._catalog = catalog
        self._markers = markers
        self._properties = properties
        self._now_ms = now_ms
        self._background = Background()
        self._recovered_effects: tuple[SendMarkers, ...] = ()
        self._allocating = asyncio.Lock()
        self._waiting_for_change: dict[str, asyncio.Future[None]] = {}

    async def load(self) -> None:
        for index in range(len(self.state.partitions)):
            self.state, effects = machine.finish_loading(
                self.state, index, coordinator_epoch=self._catalog.node_epoch, records=self._records(index)
            )
            self._recovered_effects += effects
        open_transactions: dict[Pair, set[TopicPartition]] = defaultdict(set)
        for log in self._catalog.logs():
            for producer in log.producers():
                if producer.txn_start_offset is not None:
                    pair = Pair(producer.producer_id, producer.epoch)
                    open_transactions[pair].add(TopicPartition(log.topic, log.partition))
        await self._submit_all(machine.unrecorded(self.state, open_transactions))

    def start(self) -> None:
        """Drive the decided transactions found by `load` to their end, and start the timers.

        The groups must be loaded first: a marker may resolve their pending offsets.
        """
        self._carry_out(self._recovered_effects)
        every, properties = self._background.every, self._properties
        every(properties.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out)
        every(properties.transaction_remove_expired_transaction_cleanup_interval_ms, self.remove_expired)
        every(properties.producer_id_expiration_check_interval_ms, self.expire_producers)

    async def stop(self) -> None:
        await self._background.stop()

    def set_transaction_version(self, level: int) -> None:
        self.state = replace(self.state, settings=replace(self.state.settings, transaction_version=level))

    async def submit(self, event: Event) -> Reply | None:
        """Carry out one event; its reply may be sent when this returns.

        A cancelled caller loses only the reply: the record is in the log, so the plan is settled.
        """
        if not self.state.producer_ids:
            await self._allocate()
        return await self._append_then_settle(self._reserved(event))

    def add(self, event: AddPartitionsToTxn) -> plans.AddPartitionsReply:
        """Add or verify partitions for their leader, which makes its own records durable; see the module docstring."""
        plan = self._reserved(event)
        return cast("plans.AddPartitionsReply", self._settle(plan, self._appended(plan)).reply)

    async def next_change(self, transactional_id: str, *, timeout_ms: float) -> None:
        """Wait until the next plan of an id is settled, at most ``timeout_ms``; for requests that must be retried."""
        future = asyncio.get_running_loop().create_future()
        future = self._waiting_for_change.setdefault(transactional_id, future)
        await asyncio.wait((future,), timeout=timeout_ms / 1000)
        if not future.done():
            # Other requests may wait for it too: they find it done, check again, and wait for a new one.
            del self._waiting_for_change[transactional_id]
            future.set_result(None)

    async def abort_timed_out(self) -> None:
        await self._submit_all(end_txn.due_timeouts(self.state, self._now_ms()))

    async def remove_expired(self) -> None:
        await self._submit_all(end_txn.due_expirations(self.state, self._now_ms()))

    async def expire_producers(self) -> None:
        for log in tuple(self._catalog.logs()):
            log.expire_producers(self._now_ms())

    async def _submit_all(self, events: Iterable[Event]) -> None:
        await asyncio.gather(*map(self.submit, events))

    def _reserved(self, event: Event) -> Plan:
        plan = machine.step(self.state, event, self._now_ms())
        self.state = machine.reserve(self.state, plan)
        return plan

    def _appended(self, plan: Plan) -> Code:
        if not plan.records:
            return Code.NONE
        (record,) = plan.records
        log = self._state_log(record.partition)
        return log.append_records(((record.key_bytes, record.value_bytes),), now_ms=self._now_ms()).code

    def _append_then_settle(self, plan: Plan) -> asyncio.Future[Reply | None]:
        """Append the plan's record; once it is durable, or has failed, settle the plan even if the caller has gone."""
        reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()

        def finish(code: int) -> None:
            try:
                settled = self._settle(plan, code)
            except Exception as error:  # noqa: BLE001 - a bug: passed to the waiting caller
                reply.set_exception(error)
                return
            if not reply.done():
                reply.set_result(settled.reply)
            # After the reply: it is sent before the next record or marker is written.
            self._carry_out(settled.effects, pause_ms=RETRY_PAUSE_MS if code else 0)

        code = self._appended(plan)
        if code or not plan.records:
            finish(code)
            return reply
        flushed = self._state_log(plan.records[0].partition).flush()
        if flushed.done():
            finish(_code_of(flushed))
        else:
            flushed.add_done_callback(lambda done: finish(_code_of(done)))
        return reply

    def _settle(self, plan: Plan, code: int = Code.NONE) -> machine.Settled:
        settled = machine.settle(self.state, plan, code)
        self.state = settled.state
        if plan.reserved is not None and code == Code.NONE:
            _log_change(plan, plan.reserved, self.state.get(plan.reserved.transactional_id))
        changed = plan.reserved or plan.unwritten
        waiting = None if changed is None else self._waiting_for_change.pop(changed.transactional_id, None)
        if waiting is not None:
            waiting.set_result(None)
        return settled

    def _carry_out(self, effects: Iterable[SendMarkers], *, pause_ms: int = 0) -> None:
        """Start to send markers. Until they are written, the pending state blocks other events of the id."""
        for effect in effects:
            self._background.run(self._send(effect, pause_ms))

    async def _send(self, effect: SendMarkers, pause_ms: int) -> None:
        # Without a pause, one turn of the loop, so that a reply already given is sent first.
        await asyncio.sleep(pause_ms / 1000)
        results = await self._markers.write(effect, effect.partitions)
        codes = {f"{each.topic}-{each.partition}": int(code) for each, code in results.items()}
        kind, pair = "commit" if effect.commit else "abort", f"{effect.producer_id}:{effect.producer_epoch}"
        message = "%s: %s markers of %s, coordinator epoch %d: %s"
        _log.debug(message, effect.transactional_id, kind, pair, effect.coordinator_epoch, codes)
        answered = MarkersAnswered(
            transactional_id=effect.transactional_id,
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            results=results,
        )
        plan = self._reserved(answered)
        if plan.records:
            await self._append_then_settle(plan)
        else:
            # The returned effects are the ones to send again.
            self._carry_out(self._settle(plan).effects, pause_ms=RETRY_PAUSE_MS)

    async def _allocate(self) -> None:
        """Take a block of producer ids before an event may need one.

        Kafka allocates when the first id is needed, and answers COORDINATOR_LOAD_IN_PROGRESS until then; here only
        requests that need one while the disk refuses.
        """
        async with self._allocating:
            if not self.state.producer_ids:
                try:
                    ids = await self._catalog.allocate_producer_ids()
                except OSError as error:
                    _log.warning("no producer ids were allocated: %s", error)
                else:
                    self.state = replace(self.state, producer_ids=ids)

    def _state_log(self, index: int) -> PartitionLog:
        log = self._catalog.log(TRANSACTION_STATE, index)
        assert log is not None, "its topic cannot be deleted"
        return log

    def _records(self, index: int) -> list[plans.LogRecord]:
        """The records of a state log partition, except for keys known only to another version of Kafka."""
        found = []
        log = self._state_log(index)
        for each in log.records():
            if each.batch.control:
                continue
            key = each.key or b""
            try:
                if (version := plans.key_version(key)) == plans.KEY_VERSION:
                    found.append(plans.LogRecord.decode(index, key, each.value))
                else:
                    # As in Kafka: left by an abandoned upgrade. Refusing it would keep the server from starting.
                    name = f"{TRANSACTION_STATE}-{index}"
                    _log.warning("skipped offset %d of %s: unknown key version %d", each.offset, name, version)
            except RemoteProtocolError as error:
                raise log.unreadable(each.offset, error.detail) from error
        return found


def _code_of(flushed: Synced) -> Code:
    return Code.NONE if flushed.result() is None else Code.KAFKA_STORAGE_ERROR


@dataclass
class VerificationMetrics:
    """`Verification`'s counters since the start (KIP-890, "Metrics"; Kafka: ``AddPartitionsToTxnManager``).

    ``asked`` are questions, each about the partitions of one transaction, with retries; ``time_ms`` is the total time
    to the answer (VerificationTimeMs); ``failures`` are partitions not verified or not added (VerificationFailureRate).
    """

    asked: int = 0
    time_ms: float = 0.0
    failures: int = 0

    def count(self, reply: plans.AddPartitionsReply, *, began_s: float, now_s: float) -> None:
        self.asked += 1
        self.time_ms += (now_s - began_s) * 1000
        self.failures += sum(code != Code.NONE for _, code in reply.results)


class Verification:
    """``properties`` are asked for each time: some can be altered while the broker runs."""

    def __init__(self, service: TransactionService, properties: Callable[[], BrokerProperties]) -> None:
        self._service = service
        self._properties = properties
        self.metrics: VerificationMetrics = VerificationMetrics()

    def verifies(self, version: int) -> bool:
        added = version >= add_partitions.PRODUCE_ADD_VERSION
        return added or self._properties().transaction_partition_verification_enable

    def is_sealed(self, pair: Pair) -> bool:
        """Whether this pair's transaction was kept: leaders then refuse the pair as fenced (KIP-939).

        If the transaction is already open on a partition, its leader appends without asking the coordinator. So this is
        checked after the last wait before the append: later data would be committed together with the prepared data.
        """
        return self._service.state.keeps(pair)

    async def for_produce(
        self, version: int, transactional_id: str, pair: Pair, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str | None]]:
        """The codes for a Produce's partitions, with Kafka's messages for the producer; 0 lets its leader append.

        While the previous transaction is being completed (CONCURRENT_TRANSACTIONS), adding is retried for
        ``add.partitions.to.txn.retry.backoff.max.ms``. Kafka polls every ``add.partitions.to.txn.retry.backoff.ms``;
        here the completion itself wakes the waiting requests.
        """
        event = _event(transactional_id, pair, partitions, verify_only=version < add_partitions.PRODUCE_ADD_VERSION)
        reply = self._added(event)
        if not event.verify_only and _busy(reply):
            now_s, properties = asyncio.get_running_loop().time, self._properties()
            pause_ms = properties.add_partitions_to_txn_retry_backoff_ms
            end_s = now_s() + properties.add_partitions_to_txn_retry_backoff_max_ms / 1000
            while _busy(reply) and (left_ms := (end_s - now_s()) * 1000) > 0:
                await self._service.next_change(transactional_id, timeout_ms=min(pause_ms, left_ms))
                reply = self._added(event)
        translated = {each: (add_partitions.produce_code(version, code), code) for each, code in reply.results}
        return {each: (code, add_partitions.produce_message(code, asked)) for each, (code, asked) in translated.items()}

    async def for_offsets(self, version: int, transactional_id: str, pair: Pair, partition: TopicPartition) -> int:
        """The code for a client that commits offsets in a transaction, 0 if they may be appended; asked once."""
        event = _event(transactional_id, pair, (partition,), verify_only=version < add_partitions.OFFSETS_ADD_VERSION)
        if event.verify_only and not self._properties().transaction_partition_verification_enable:
            return Code.NONE
        began_s = time.perf_counter()
        reply = cast("plans.AddPartitionsReply", await self._service.submit(event))
        self.metrics.count(reply, began_s=began_s, now_s=time.perf_counter())
        return reply.codes[partition]

    def _added(self, event: AddPartitionsToTxn) -> plans.AddPartitionsReply:
        began_s = time.perf_counter()
        reply = self._service.add(event)
        self.metrics.count(reply, began_s=began_s, now_s=time.perf_counter())
        return reply


def _event(
    transactional_id: str, pair: Pair, partitions: Sequence[TopicPartition], *, verify_only: bool
) -> AddPartitionsToTxn:
    return AddPartitionsToTxn(
        transactional_id=transactional_id,
        producer_id=pair.producer_id,
        producer_epoch=pair.epoch,
        partitions=tuple(partitions),
        verify_only=verify_only,
    )


def _busy(reply: plans.AddPartitionsReply) -> bool:
    return any(code == Code.CONCURRENT_TRANSACTIONS for _, code in reply.results)
