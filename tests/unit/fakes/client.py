"""A driver's view of a fake broker: what `TransactionClient` answers, made of the broker's replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import KafkaTimeoutError, OutcomeUnknownError
from spark_2pc_sink.ids import (
    EPOCH_BUMP_VERSION,
    TIMEOUT_NEVER_MS,
    PreparedTxnState,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionState,
)
from spark_2pc_sink.kafka.coordinator_calls import KEEP_REFUSED, InitializedProducer, TransactionDescription
from spark_2pc_sink.kafka.error_policy import COORDINATOR_BUSY, kafka_error
from spark_2pc_sink.kafka.transaction_client import EndTxnAnswer
from spark_2pc_sink.reference.coordinator.coordinator_state import Profile
from spark_2pc_sink.reference.coordinator.plans import EndTxnReply
from spark_2pc_sink.wire.error_codes import describe_error
from tests.unit.fakes.broker import FakeBroker

_T = TypeVar("_T")
#: How often a request is repeated that is answered "ask again". One repetition lets the broker write its markers.
ATTEMPTS_MAX: Final = 10


class FakeClient:
    """It repeats what is answered "ask again", as the real client does, and judges nothing.

    Args:
        broker: whom it asks.

    Attributes:
        timeout_ms: what InitProducerId asks for without two-phase commit.
        own_timeout: whether the user has set that.
    """

    timeout_ms = 60_000
    own_timeout = False

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self._keep_refused = False

    @property
    def transaction_version(self) -> int:
        """As the broker is set."""
        return self.broker.state.settings.transaction_version

    @property
    def two_phase_commit(self) -> bool:
        """As the broker is set."""
        return self.broker.state.settings.two_phase_commit_enable

    @property
    def offers_keep_prepared(self) -> bool:
        """InitProducerId v6 is offered wherever two-phase commit is; only the answer tells the rest."""
        settings = self.broker.state.settings
        offered = settings.profile is not Profile.AS_RELEASED or settings.two_phase_commit_enable
        return offered and not self._keep_refused

    def request(self, what: str, effect: Callable[[], _T]) -> _T:
        """Send one request; a schedule, or a script, may have something against it.

        Args:
            what: of the request, for people.
            effect: what the broker does.
        """
        raise NotImplementedError

    def ask(self, what: str, effect: Callable[[], _T], code_of: Callable[[_T], int]) -> _T:
        """Send one request until it is answered with anything but "ask again".

        Raises:
            KafkaTimeoutError: it was not.
        """
        for _ in range(ATTEMPTS_MAX):
            reply = self.request(what, effect)
            if code_of(reply) not in COORDINATOR_BUSY:
                return reply
            self.pause()
        raise unanswered()

    def pause(self) -> None:
        """Wait between two repetitions."""

    def refresh(self) -> None:
        """Forget what was refused."""
        self._keep_refused = False

    def ask_features(self) -> None:
        """As `learn_features`."""

    def learn_features(self) -> None:
        """What the broker is set to is known."""

    def describe(self) -> TransactionDescription:
        """DescribeTransactions."""
        found = self.ask("describe", self.broker.describe, lambda reply: reply.code)
        if found.code == Code.TRANSACTIONAL_ID_NOT_FOUND:
            return TransactionDescription(TransactionState.UNKNOWN.value, None, 0)
        if found.code != Code.NONE:
            raise kafka_error("DescribeTransactions", found.code)
        return TransactionDescription(
            found.state, ProducerIdAndEpoch(*found.pair), found.timeout_ms, tuple(sorted(found.partitions))
        )

    def init_producer_id(self, *, keep_prepared: bool = False) -> InitializedProducer:
        """InitProducerId, and where two-phase commit is granted, a look at the timeout that was stored."""
        granted = self.two_phase_commit
        reply = self.ask(
            "keep" if keep_prepared else "init",
            lambda: self.broker.init(timeout_ms=self.timeout_ms, two_phase_commit=granted, keep_prepared=keep_prepared),
            lambda answer: answer.code,
        )
        if reply.code != Code.NONE:
            self._keep_refused |= keep_prepared and reply.code in KEEP_REFUSED
            raise kafka_error("InitProducerId", reply.code)
        kept = reply.ongoing.producer_id >= 0
        ongoing = PreparedTxnState.of(ProducerIdAndEpoch(*reply.ongoing)) if kept else PreparedTxnState()
        timeout_ms = self.stored_timeout_ms() if granted else self.timeout_ms
        return InitializedProducer(
            ProducerIdAndEpoch(*reply.pair), ongoing, timeout_ms == TIMEOUT_NEVER_MS, timeout_ms, self.own_timeout
        )

    def stored_timeout_ms(self) -> int:
        """What the coordinator has stored."""
        return self.describe().timeout_ms

    def usable_producer(self) -> InitializedProducer:
        """InitProducerId, twice where the epochs of the id are used up."""
        initialized = self.init_producer_id()
        return self.init_producer_id() if initialized.producer.exhausted else initialized

    def add_partitions(self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]) -> None:
        """AddPartitionsToTxn."""
        wanted = tuple(partitions)
        code = self.ask("add", lambda: self.broker.add(producer, wanted), lambda code: code)
        if code != Code.NONE:
            raise kafka_error("AddPartitionsToTxn", code)

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> EndTxnAnswer:
        """EndTxn."""
        try:
            reply = self.ask(
                f"end {producer}", lambda: self.broker.end(producer, commit=commit), lambda answer: answer.code
            )
        except KafkaTimeoutError as error:
            raise OutcomeUnknownError(operation="EndTxn", deadline_ms=1, last_error=error.last_error) from error
        return self.answer_of(reply)

    def answer_of(self, reply: EndTxnReply) -> EndTxnAnswer:
        """What the real client tells of an answer to EndTxn."""
        told = reply.code == Code.NONE and self.transaction_version >= EPOCH_BUMP_VERSION
        pair = ProducerIdAndEpoch(*reply.pair) if told else None
        return EndTxnAnswer(reply.code, describe_error(reply.code).name, pair)


def unanswered() -> KafkaTimeoutError:
    """The error of a request that was lost, or its reply."""
    return KafkaTimeoutError(operation="request", deadline_ms=1, last_error="the connection was lost")
