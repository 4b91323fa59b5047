"""The pure coordinator as a subject: the same cases, without a socket, a clock or a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.config.properties import STANDARD_AUTHORIZER, BrokerProperties
from spark_2pc_sink.reference.coordinator import events
from spark_2pc_sink.reference.coordinator.add_partitions import batch_allowed
from spark_2pc_sink.reference.coordinator.end_txn import due_expirations, due_timeouts
from spark_2pc_sink.reference.coordinator.events import FULL_ACCESS, Access
from spark_2pc_sink.reference.coordinator.machine import describe_transaction, list_transactions
from spark_2pc_sink.reference.coordinator.plans import (
    AddOffsetsReply,
    AddPartitionsReply,
    EndTxnReply,
    InitProducerIdReply,
    Reply,
)
from spark_2pc_sink.reference.coordinator.states import Settings, TransactionMetadata
from spark_2pc_sink.reference.metadata.acls import Acl, access_by_acls
from tests.conformance import operations as ops
from tests.conformance.answers import Names, brief
from tests.conformance.cases import TOPICS, Case
from tests.conformance.subjects import check, given_ids, metadata_of
from tests.unit.reference.coordinator.driver import START_MS, Driver, end, who

_TOPICS: Final = {sign: (sign[1:], 0) for sign in TOPICS}
#: The one topic of the cases that no server has.
_ABSENT: Final = "absent"
#: How long a step waits that waits for something to happen by itself.
_PAUSE_MS: Final = 1000
_LITERAL, _ALLOW = 3, 3
#: Begins the ids of a case.
_MARK: Final = "case-"
_NOW_MS: Final = START_MS + 1_000_000_000_000


class MachineSubject:
    """The coordinator without anything round it; each case has one of its own."""

    def __init__(self, level: int, **settings: Any) -> None:
        given = {"two_phase_commit_enable": True, "offsets_partition_count": 1, **settings}
        self._settings = Settings(transaction_version=level, **given)

    def run(self, case: Case) -> None:
        self._run(case, FULL_ACCESS)

    def run_as_user(self, case: Case) -> None:
        """The same with the rights of the case, but for what an administrator does."""
        secured = BrokerProperties.from_mapping({"authorizer.class.name": STANDARD_AUTHORIZER})
        rights = tuple(
            Acl(
                resource=kind,
                pattern=_LITERAL,
                name=_TOPICS[name][0] if name in _TOPICS else name.replace("@", _MARK),
                principal="User:user",
                host="*",
                operation=operation,
                permission=_ALLOW,
            )
            for kind, name, operation in (right.value for right in case.rights)
        )
        self._run(case, access_by_acls(secured, lambda: rights)("User:user", "127.0.0.1"))

    def _run(self, case: Case, access: Access) -> None:
        names = Names(_MARK, _TOPICS, given_ids(0))
        driver = Driver.of(settings=self._settings, producer_ids=range(1000))
        driver.now_ms = _NOW_MS
        if case.given is not None:
            level = self._settings.transaction_version
            driver.store(metadata_of(case.given, f"{_MARK}T", names, level=level, now_ms=_NOW_MS))
            # A coordinator that has read the bytes of it from its log.
            driver = driver.crashed()
            if case.given.stuck:
                driver.effects.clear()
        for index, step in enumerate(case.steps):
            if step.until:
                _pass_time(driver)
            answer = _answer(driver, step.operation, names, FULL_ACCESS if step.admin else access)
            check(step, case, index, answer)

    def close(self) -> None:
        """Nothing is held."""


def _pass_time(driver: Driver) -> None:
    driver.now_ms += _PAUSE_MS
    late: list[events.Event] = [*due_timeouts(driver.state, driver.now_ms)]
    for due in (*late, *due_expirations(driver.state, driver.now_ms)):
        driver.run(due)


def _answer(driver: Driver, operation: ops.Operation, names: Names, access: Access) -> str:
    filled = names.fill(operation)
    if isinstance(filled, ops.Add) and filled.version >= ops.BATCHED_ADD_VERSION and (code := batch_allowed(access)):
        return brief(operation, code)
    if isinstance(filled, ops.Describe):
        result = _described(describe_transaction(driver.state, filled.tid, access))
    elif isinstance(filled, ops.ListTransactions):
        code, unknown, found = list_transactions(driver.state, filled.request(), access, driver.now_ms)
        rows = sorted((each.transactional_id, ops.ProducerId(each.producer_id), each.state.label) for each in found)
        result = code, sorted(unknown), rows
    else:
        reply = driver.run(replace(EVENTS[type(filled)](filled), access=access))  # type: ignore[arg-type]
        assert reply is not None
        result = _result(filled, reply)
    return brief(operation, names.name(result))


def _init(request: ops.Init) -> events.Event:
    return events.InitProducerId(
        transactional_id=request.tid,
        timeout_ms=request.timeout_ms,
        producer_id=request.held[0],
        producer_epoch=request.held[1],
        enable_2pc=request.two_phase,
        keep_prepared=request.keep,
        version=request.version,
    )


def _add(request: ops.Add) -> events.Event:
    places = tuple(TopicPartition(*each) for each in request.partitions)
    return events.AddPartitionsToTxn(
        **who(request.pair, request.tid),
        partitions=places,
        version=request.version,
        verify_only=request.verify,
        unknown=frozenset(each for each in places if each.topic == _ABSENT),
    )


def _add_offsets(request: ops.AddOffsets) -> events.Event:
    return events.AddOffsetsToTxn(**who(request.pair, request.tid), group_id=request.group, version=request.version)


#: The requests that are events of the pure coordinator.
EVENTS: Final[Mapping[type, Callable[[Any], events.Event]]] = {
    ops.Init: _init,
    ops.Add: _add,
    ops.AddOffsets: _add_offsets,
    ops.End: lambda request: end(request.pair, tid=request.tid, commit=request.commit, version=request.version),
}
#: All that the pure coordinator answers.
KNOWN: Final = frozenset({*EVENTS, ops.Describe, ops.ListTransactions})


def _result(operation: ops.Operation, reply: Reply) -> Any:
    """The reply as `Operation.result` gives it."""
    if isinstance(reply, InitProducerIdReply) and reply.ongoing != ops.NO_PAIR:
        kept = ops.ProducerId(reply.ongoing.producer_id), reply.ongoing.epoch
        return reply.code, ops.ProducerId(reply.pair.producer_id), reply.pair.epoch, kept
    if isinstance(reply, InitProducerIdReply | EndTxnReply):
        old = isinstance(operation, ops.End) and operation.version < ops.BUMPING_END_VERSION
        return reply.code if old else (reply.code, ops.ProducerId(reply.pair.producer_id), reply.pair.epoch)
    if isinstance(reply, AddPartitionsReply):
        return {(place.topic, place.partition): code for place, code in reply.results}
    assert isinstance(reply, AddOffsetsReply)
    return reply.code


def _described(found: TransactionMetadata | Code) -> Any:
    if isinstance(found, Code):
        return found
    places = sorted((each.topic, each.partition) for each in found.partitions)
    pair = ops.ProducerId(found.producer_id), found.producer_epoch
    return (found.state.label, *pair, found.timeout_ms, found.start_ms >= 0, places)
