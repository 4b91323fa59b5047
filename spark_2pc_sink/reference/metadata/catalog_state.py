"""State of the catalog as one immutable value, the JSON that it is kept as, and the rules of topic names.

Kafka keeps the same in its metadata log (KIP-500); a single node needs no log of changes, only the last state.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import google_crc32c

from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS, INTERNAL_TOPICS, TRANSACTION_STATE
from spark_2pc_sink.reference.metadata.acls import Acl

_CHECKSUM: Final = "crc32c"


def write_checked(document: dict[str, Any]) -> bytes:
    return json.dumps({**document, _CHECKSUM: _checksum(document)}, indent=1).encode()


def read_checked(data: bytes) -> Any:
    """The document that `write_checked` wrote; ValueError for anything else."""
    found = json.loads(data)
    written = found.pop(_CHECKSUM, None) if isinstance(found, dict) else None
    if written != _checksum(found):
        raise ValueError(f"its checksum is {written}, that of its fields {_checksum(found)}")
    return found


def _checksum(document: dict[str, Any]) -> int:
    return int(google_crc32c.value(json.dumps(document, sort_keys=True).encode()))


#: Producer ids are handed out in blocks of this many (Kafka: ``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``).
PRODUCER_ID_BLOCK_SIZE: Final = 1000

#: The topic of a KRaft cluster's own log, which no client may create.
CLUSTER_METADATA: Final = "__cluster_metadata"
#: Directories are named after topics, followed by a partition number: file systems allow 255 bytes.
NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")

_FORMAT_VERSION: Final = 1
_COORDINATOR_TOPICS: Final = frozenset({TRANSACTION_STATE, GROUP_OFFSETS})


@dataclass(frozen=True)
class Topic:
    """A topic's current state.

    ``configs`` are those set for this topic, without defaults; ``log_starts`` the first available offset of each
    partition whose records were deleted (DeleteRecords).
    """

    name: str
    id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    log_starts: Mapping[int, int] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def is_coordinator_topic(self) -> bool:
        """True for the topics of this server's own coordinators: they cannot be deleted or given more partitions."""
        return self.name in _COORDINATOR_TOPICS


@dataclass(frozen=True, kw_only=True)
class CatalogState:
    """All metadata that the catalog stores.

    ``starts`` includes the current one. ``property_transaction_version`` is the value of ``transaction.version`` at the
    last start, ``feature_changes`` the number of level changes while a node ran. Every id below ``next_producer_id``
    may have been handed out. ``broker_configs`` are by broker id ('' for all brokers) and name. Topics ``removing`` are
    deleted for clients, and their files may still be there.
    """

    cluster_id: str
    node_id: int
    starts: int
    transaction_version: int
    property_transaction_version: int
    feature_changes: int = 0
    next_producer_id: int = 0
    topics: Mapping[str, Topic] = field(default_factory=dict)
    acls: tuple[Acl, ...] = ()
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    removing: tuple[Topic, ...] = ()

    def with_topics(self, *topics: Topic) -> CatalogState:
        return replace(self, topics={**self.topics, **{topic.name: topic for topic in topics}})


def name_fault(name: str) -> str | None:
    """What is wrong with a name, in Kafka's words; None if it is valid."""
    if not name:
        fault = "the empty string is not allowed"
    elif name in {".", ".."}:
        fault = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        fault = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif _LEGAL.fullmatch(name) is None:
        fault = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {fault}"


def colliding(name: str, existing: Iterable[str]) -> str | None:
    """An existing topic whose metrics would collide with those of the new one: there, '.' and '_' are the same."""
    if not {".", "_"} & set(name):
        return None
    return next((other for other in existing if other != name and unified(other) == unified(name)), None)


def unified(name: str) -> str:
    """A topic's name as its metrics have it."""
    return name.replace(".", "_")


def random_id() -> uuid.UUID:
    found = uuid.uuid4()
    # The first six bits are the first character; one id in 64 gets an A there instead.
    return found if id_text(found)[0] != "-" else uuid.UUID(int=found.int & ((1 << 122) - 1))


def id_text(found: uuid.UUID) -> str:
    """An id in Kafka's text form: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(found.bytes).decode().rstrip("=")


def id_of_text(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


#: The fields that JSON keeps as they are.
_PLAIN: Final = (
    "cluster_id",
    "node_id",
    "starts",
    "transaction_version",
    "property_transaction_version",
    "feature_changes",
    "next_producer_id",
    "broker_configs",
)


def write_state(state: CatalogState) -> bytes:
    document = {
        "version": _FORMAT_VERSION,
        **{name: getattr(state, name) for name in _PLAIN},
        "topics": [_topic_document(topic) for topic in state.topics.values()],
        "removing": [_topic_document(topic) for topic in state.removing],
        "acls": [dict(vars(acl)) for acl in state.acls],
    }
    return write_checked(document)


def read_state(document: bytes) -> CatalogState:
    try:
        found = read_checked(document)
        if found["version"] != _FORMAT_VERSION:
            raise ValueError(f"its version is {found['version']!r}, only {_FORMAT_VERSION} is supported")
        topics = [_topic(row) for row in found["topics"]]
        return CatalogState(
            **{name: found[name] for name in _PLAIN},
            topics={topic.name: topic for topic in topics},
            removing=tuple(_topic(row) for row in found["removing"]),
            acls=tuple(Acl(**row) for row in found["acls"]),
        )
    except KeyError as error:
        raise ValueError(f"it has no field {error}") from error
    except TypeError as error:
        raise ValueError(f"a field has the wrong type: {error}") from error


def _topic_document(topic: Topic) -> dict[str, Any]:
    log_starts = {str(partition): offset for partition, offset in topic.log_starts.items()}
    return {**vars(topic), "id": id_text(topic.id), "log_starts": log_starts}


def _topic(row: dict[str, Any]) -> Topic:
    log_starts = {int(partition): offset for partition, offset in row["log_starts"].items()}
    return Topic(**{**row, "id": id_of_text(row["id"]), "log_starts": log_starts})
