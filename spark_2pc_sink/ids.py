"""The names of a transaction: its producer id and epoch, its state, and the text that a database stores for it.

All are small frozen values that can be compared, hashed, pickled and written as text. This module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_2pc_sink.errors import ConfigurationError

#: The largest producer id (``Long.MAX_VALUE``).
PRODUCER_ID_MAX = 2**63 - 1
#: A longer number is not a Kafka number, even with leading zeros; Python refuses to read one of 4301 digits.
_DIGITS_MAX = 64
#: Spark numbers batches by an int64; a range of them has a length.
_BATCH_IDS_END = 2**63 - 1
#: Kafka allocates producer ids and epochs from 0; -1 means "none" in every message (KIP-98).
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
#: The largest epoch that a client may hold (``Short.MAX_VALUE - 1`` in Kafka).
EPOCH_MAX = 32766
#: ``Short.MAX_VALUE``: only ever written by the coordinator, in the markers that end a transaction at `EPOCH_MAX`
#: (KIP-890, "Epoch overflow").
EPOCH_LIMIT = 32767
#: From this transaction.version on every EndTxn bumps the epoch, so that a producer id and epoch name one transaction,
#: and Produce adds partitions to the transaction automatically (KIP-890, part 2).
EPOCH_BUMP_VERSION = 2
#: The timeout of a transaction that never times out. KIP-939 says -1; Kafka stores and shows ``Integer.MAX_VALUE``.
TIMEOUT_NEVER_MS = 2**31 - 1
#: The column that holds a transactional id is a varchar(255), as in the schema that KIP-939 gives.
TRANSACTIONAL_ID_CHARACTERS_MAX = 255


@dataclass(frozen=True, order=True)
class ProducerIdAndEpoch:
    """Producer id and epoch: the pair that Kafka fences by.

    On transaction.version 2 it names exactly one transaction, because the epoch is bumped at the end of each
    (KIP-890, "Bump epoch on each transaction").

    Raises:
        ConfigurationError: a part is outside the range that Kafka allocates.
    """

    producer_id: int
    epoch: int

    def __post_init__(self) -> None:
        if not (0 <= self.producer_id <= PRODUCER_ID_MAX and 0 <= self.epoch <= EPOCH_LIMIT):
            rule = f"the producer id must be from 0 to {PRODUCER_ID_MAX}, and the epoch from 0 to {EPOCH_LIMIT}"
            remedy = "pass the values returned by a Kafka transaction coordinator"
            raise ConfigurationError(option="producer id and epoch", value=str(self), rule=rule, remedy=remedy)

    @property
    def exhausted(self) -> bool:
        """True if no transaction may begin at this epoch: ending it would need a new producer id."""
        return self.epoch >= EPOCH_MAX

    def bumped(self) -> ProducerIdAndEpoch:
        """The same producer id, one epoch later: used by this transaction's end markers on transaction.version 2."""
        return ProducerIdAndEpoch(self.producer_id, self.epoch + 1)

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


@dataclass(frozen=True, init=False)
class PreparedTxnState:
    """The text that a database stores for a prepared transaction: ``producerId:epoch``, or '' for none.

    It is the same text as that of Java's ``org.apache.kafka.clients.producer.PreparedTxnState``, so that either can
    read the other's (KIP-939, "KafkaProducer API Changes").

    Args:
        text: ``''`` or ``'producerId:epoch'``, both decimal. None is the empty state: a first load from a database
            finds NULL. Leading zeros are ignored, so that ``'01:2'`` equals ``'1:2'`` as in Java.

    Raises:
        ConfigurationError: the text has any other form, or a number that Kafka never allocates.
    """

    text: str

    def __init__(self, text: str | None = "") -> None:
        object.__setattr__(self, "text", text or "")
        if self.producer is not None:
            object.__setattr__(self, "text", str(self.producer))
        elif self.text:
            rule = "must be '' or 'producerId:epoch' with two decimal numbers"
            remedy = "pass the text returned by prepare_transaction(), unchanged"
            raise ConfigurationError(option="prepared transaction state", value=self.text, rule=rule, remedy=remedy)

    @classmethod
    def of(cls, producer: ProducerIdAndEpoch) -> PreparedTxnState:
        """The state that names the transaction of ``producer``."""
        return cls(str(producer))

    @property
    def producer(self) -> ProducerIdAndEpoch | None:
        """Producer id and epoch, or None for the empty state."""
        producer_id, _, epoch = self.text.partition(":")
        if not (_is_decimal(producer_id) and _is_decimal(epoch)):
            return None
        return ProducerIdAndEpoch(int(producer_id), int(epoch))

    @property
    def has_transaction(self) -> bool:
        """True unless this is the empty state, as Java's ``hasTransaction()``."""
        return self.text != ""

    def __str__(self) -> str:
        return self.text


#: The state that names no transaction.
NO_TRANSACTION = PreparedTxnState()


class TransactionState(str, Enum):
    """State names in DescribeTransactions responses; ``UNKNOWN`` is for TRANSACTIONAL_ID_NOT_FOUND (105).

    A member equals its name on the wire, because a newer Kafka may return an unlisted name.
    """

    UNKNOWN = "Unknown"
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


#: An outcome is decided and its markers are being written; the state changes a moment later.
ENDING_STATES = frozenset(
    {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT, TransactionState.PREPARE_EPOCH_FENCE}
)


@dataclass(frozen=True, order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """Read ``topic-partition``, as `str` writes it; a topic's name may have hyphens itself."""
        topic, _, partition = text.rpartition("-")
        return cls(topic, int(partition))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True)
class BatchRange:
    """Batches of one query by their ids, written as ``41..43``, ``41``, or ``none``."""

    first: int
    #: Below ``first`` if the range is empty.
    last: int

    @classmethod
    def parse(cls, given: object) -> BatchRange:
        """Parse a user's text, or refuse it by a `ConfigurationError`."""
        if isinstance(given, cls):
            return given
        text = given.strip() if isinstance(given, str) else ""
        if text == "none":
            return NO_BATCHES
        first, dots, last = text.partition("..")
        ids = (first, last) if dots else (first, first)
        if not all(map(_is_decimal, ids)) or not int(ids[0]) <= int(ids[1]) < _BATCH_IDS_END:
            rule = "must be the first and the last batch id, one batch id, or none"
            remedy = "write '41..43', '41' or 'none', as shown by the error that asks for it"
            raise ConfigurationError(option="accept_loss", value=given, rule=rule, remedy=remedy)
        return cls(int(ids[0]), int(ids[1]))

    def __len__(self) -> int:
        return max(0, self.last - self.first + 1)

    def __str__(self) -> str:
        if not len(self):
            return "none"
        return str(self.first) if self.first == self.last else f"{self.first}..{self.last}"


NO_BATCHES = BatchRange(0, -1)


def check_transactional_id(text: str) -> str:
    """Return ``text`` if it can serve as a transactional id: 1 to 255 characters without control characters."""
    if not 0 < len(text) <= TRANSACTIONAL_ID_CHARACTERS_MAX or not text.isprintable():
        rule = f"must have 1 to {TRANSACTIONAL_ID_CHARACTERS_MAX} printable characters"
        remedy = "give each sink one short name that stays the same across restarts, such as 'orders'"
        raise ConfigurationError(option="transactional_id", value=text, rule=rule, remedy=remedy)
    return text
