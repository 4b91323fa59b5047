"""State of the catalog as one immutable value, the rules of topic names, and the directory that keeps both it and logs.

Kafka keeps the same in its metadata log (KIP-500); a single node needs no log of changes, only the last state. The
directory is laid out as Kafka lays out its ``log.dirs``::

    .lock                       locked while a process has the directory
    catalog.json                everything that the node knows, replaced as a whole
    catalog.json.previous       the version before the last change, to recover from a damaged catalog.json
    log-ends.json               how far each log was on disk at the last start or clean stop
    <topic>-<partition>/        the segments of one partition, and partition.metadata with the topic's id
    <topic>-<partition>.<id>-delete/    a deleted topic, being removed
    <topic>-<partition>.<id>-stray/     records of a topic that does not exist, kept for inspection

Functions of the directory block on the disk: the catalog calls them in a thread.

A log only grows, so the offsets of any earlier moment hold. A partition is identified by its topic's id, because a
topic that is recreated under the same name begins at 0.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import google_crc32c

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.reference.config.properties import BrokerProperties, check_level
from spark_2pc_sink.reference.internal_topics import GROUP_OFFSETS, INTERNAL_TOPICS, TRANSACTION_STATE
from spark_2pc_sink.reference.metadata.acls import Acl
from spark_2pc_sink.reference.storage.files import sync_directory

_log = logging.getLogger(__name__)

#: Producer ids are handed out in blocks of this many (Kafka: ``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``).
PRODUCER_ID_BLOCK_SIZE: Final = 1000

#: The topic of a KRaft cluster's own log, which no client may create.
CLUSTER_METADATA: Final = "__cluster_metadata"
#: Directories are named after topics, followed by a partition number: file systems allow 255 bytes.
NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True)
class Topic:
    """``configs`` are without defaults; ``log_starts`` the first offsets of partitions whose records were deleted."""

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
        return self.name in {TRANSACTION_STATE, GROUP_OFFSETS}


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


def unified(name: str) -> str:
    """A topic's name as its metrics have it, where '.' and '_' are the same: two such topics would collide."""
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


_CHECKSUM: Final = "crc32c"
_FORMAT_VERSION: Final = 1
#: The fields that JSON keeps as they are.
_PLAIN: Final = [each.name for each in fields(CatalogState) if each.name not in {"topics", "removing", "acls"}]


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


def read_state(document: bytes) -> CatalogState:
    try:
        found = read_checked(document)
        if found["version"] != _FORMAT_VERSION:
            raise ValueError(f"its version is {found['version']!r}, only {_FORMAT_VERSION} is supported")
        return CatalogState(
            topics={topic.name: topic for topic in map(_topic, found["topics"])},
            removing=tuple(map(_topic, found["removing"])),
            acls=tuple(Acl(**row) for row in found["acls"]),
            **{name: found[name] for name in _PLAIN},
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


#: Topic id and partition to the offset after the last record.
LogEnds: TypeAlias = Mapping[tuple[uuid.UUID, int], int]

_CATALOG: Final = "catalog.json"
#: Kafka writes it into its own directories.
_META: Final = "meta.properties"
_PARTITION_META: Final = "partition.metadata"
_UNFINISHED: Final = ".tmp"
_PREVIOUS: Final = ".previous"
_LOG_ENDS: Final = "log-ends.json"
_PARTITION_DIRECTORY: Final = re.compile(r"[a-zA-Z0-9._-]+-\d+")


class DataDirectory:
    """A directory that this process locks from the constructor to :meth:`close`."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._refused(f"cannot be used: {error.strerror}", "name a directory that can be written") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise
            raise self._refused("is used by another process", "stop it, or name another directory") from error

    def close(self) -> None:
        os.close(self._lock)

    def read_catalog(self) -> CatalogState | None:
        """The last written state; None in a directory that was never used."""
        file = self.path / _CATALOG
        try:
            return read_state(file.read_bytes())
        except FileNotFoundError:
            for entry in self.path.iterdir():
                if entry.name == _META or (entry.is_dir() and _PARTITION_DIRECTORY.fullmatch(entry.name)):
                    raise self._refused(
                        f"contains {entry.name} but no {_CATALOG}: the data of another server, or a lost file",
                        "name an empty directory, or restore the file",
                    ) from None
            return None
        except ValueError as error:
            raise self._refused(
                f"{file} cannot be read: {error}",
                f"restore the file, or name another directory. {file.name}{_PREVIOUS} lacks the last change: use it "
                "only if that change did not create a topic or a block of producer ids",
            ) from error

    def write_catalog(self, state: CatalogState) -> None:
        """Replace the state, durably before this returns; after a crash either the old or the new one is there.

        The old one is hard-linked under a second name, which survives.
        """
        unfinished = self.path / (_CATALOG + _PREVIOUS + _UNFINISHED)
        unfinished.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # the first start
            unfinished.hardlink_to(self.path / _CATALOG)
            unfinished.replace(self.path / (_CATALOG + _PREVIOUS))
        document = {
            "version": _FORMAT_VERSION,
            **{name: getattr(state, name) for name in _PLAIN},
            "topics": [_topic_document(topic) for topic in state.topics.values()],
            "removing": [_topic_document(topic) for topic in state.removing],
            "acls": [dict(vars(acl)) for acl in state.acls],
        }
        self._replace(_CATALOG, write_checked(document))

    def start(self, properties: BrokerProperties) -> CatalogState:
        found = self.read_catalog()
        if found is None:
            state = new_state(properties)
        elif found.node_id != properties.node_id:
            rule = f"{self.path} belongs to node {found.node_id}"
            raise refused("node.id", properties.node_id, rule, "use that id, or another directory")
        else:
            # The last change of the level wins: by kafka-features.sh, or by the property.
            same = properties.transaction_version == found.property_transaction_version
            level = found.transaction_version if same else properties.transaction_version
            check_level(properties, level)
            self.remove_topics(found.removing, live=found.topics)
            state = replace(
                found,
                starts=found.starts + 1,
                transaction_version=level,
                property_transaction_version=properties.transaction_version,
                removing=(),
            )
        self.write_catalog(state)
        self.make_partitions(state.topics.values(), starting=True)
        return state

    def store(self, state: CatalogState, *, before: CatalogState) -> None:
        """Write a changed state, and make directories for new partitions. After an OSError the state is unchanged."""
        # A crash between the two leaves a topic without directories; the next start creates them.
        self.write_catalog(state)
        try:
            changed = [topic for topic in state.topics.values() if topic is not before.topics.get(topic.name)]
            self.make_partitions(changed, live=state.topics.values())
        except OSError:
            # The change is answered as failed, so a start must not find it made. If the disk is too full for that too,
            # the next change takes it back.
            with suppress(OSError):
                self.write_catalog(before)
            raise

    def read_log_ends(self) -> LogEnds:
        file = self.path / _LOG_ENDS
        try:
            rows = read_checked(file.read_bytes())["ends"]
            return {(id_of_text(topic_id), int(partition)): int(end) for topic_id, partition, end in rows}
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise self._refused(
                f"{file} cannot be read: {error}",
                "restore the file, or remove it: logs are then accepted as they are, and lost records are not noticed",
            ) from error

    def write_log_ends(self, ends: LogEnds) -> None:
        rows = [[id_text(topic_id), partition, end] for (topic_id, partition), end in ends.items()]
        self._replace(_LOG_ENDS, write_checked({"ends": rows}))

    def partition(self, topic: str, partition: int) -> Path:
        return self.path / f"{topic}-{partition}"

    def make_partitions(self, topics: Iterable[Topic], *, live: Iterable[Topic] = (), starting: bool = False) -> None:
        """Make the directories of all partitions that have none yet, durable before this returns.

        A directory of a topic that does not exist (half created, or deleted) is renamed, and removed with the next
        deleted topic unless it contains records. Those of the other existing topics, ``live``, stay where they are; so
        do records when ``starting``, for `must_belong` to refuse: the files were exchanged.
        """
        topics = tuple(topics)
        owners = {topic.id for topic in (*topics, *live)}
        existing = {entry.name for entry in self.path.iterdir()}
        made: list[Path] = []
        try:
            for topic in topics:
                metadata = f"version: 0\ntopic_id: {id_text(topic.id)}"
                for partition in range(topic.partitions):
                    directory = self.partition(topic.name, partition)
                    if directory.name in existing and _topic_id(directory) not in {None, *owners}:
                        if starting and _has_records(directory):
                            continue
                        self._make_room(directory)
                        existing.discard(directory.name)
                    if directory.name not in existing:
                        directory.mkdir()
                        made.append(directory)
                        (directory / _PARTITION_META).write_text(metadata)
        except OSError:
            # They are empty, and the disk may have no room for what the caller writes next.
            for directory in made:
                shutil.rmtree(directory, ignore_errors=True)
            raise
        if made:
            sync_directory(self.path)

    def must_belong(self, topic: Topic, partition: int) -> Path:
        """The partition's directory, after checking which topic it belongs to."""
        directory = self.partition(topic.name, partition)
        found = _topic_id(directory)
        if found not in {None, topic.id}:
            raise self._refused(
                f"{directory} contains the data of another topic of that name, with the id {found}", "move it away"
            )
        return directory

    def remove_topics(self, topics: Iterable[Topic], *, live: Container[str] = ()) -> None:
        """Remove all files of deleted topics; files that are already gone are ignored.

        A directory is renamed before its files are removed, so that a half-empty one never has its own name. Files that
        cannot be removed are left to the next call. A directory without a topic id may belong to one of the existing
        topics, whose names are ``live``.
        """
        existing = {entry.name for entry in self.path.iterdir()}
        renamed = False
        for topic in topics:
            owners = {topic.id} if topic.name in live else {topic.id, None}
            for partition in range(topic.partitions):
                directory = self.partition(topic.name, partition)
                if directory.name in existing and _topic_id(directory) in owners:
                    directory.rename(self.path / f"{directory.name}.{uuid.uuid4().hex}-delete")
                    existing.discard(directory.name)
                    renamed = True
        if renamed:
            sync_directory(self.path)
        for leftover in self.path.glob("*-delete"):
            try:
                shutil.rmtree(leftover)
            except OSError as error:
                _log.warning("could not remove %s, will retry: %s", leftover, error)

    def _make_room(self, directory: Path) -> None:
        """Rename the directory of a topic that does not exist, with Kafka's suffixes."""
        used = _has_records(directory)
        away = self.path / f"{directory.name}.{uuid.uuid4().hex}-{'stray' if used else 'delete'}"
        directory.rename(away)
        if used:
            _log.warning("%s contains records of an unknown topic; renamed it to %s", directory, away.name)

    def _replace(self, name: str, content: bytes) -> None:
        unfinished = self.path / (name + _UNFINISHED)
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path / name)
        sync_directory(self.path)

    def _refused(self, rule: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(option="--data-dir", value=str(self.path), rule=rule, remedy=remedy)


def _has_records(directory: Path) -> bool:
    return any(segment.stat().st_size for segment in directory.glob("*.log"))


def _topic_id(directory: Path) -> uuid.UUID | None:
    """The id in its ``partition.metadata``; None if a crash kept it from the disk."""
    try:
        _, _, text = (directory / _PARTITION_META).read_text().partition("topic_id: ")
        return id_of_text(text.strip())
    except (FileNotFoundError, ValueError):
        return None


def new_state(properties: BrokerProperties) -> CatalogState:
    check_level(properties, properties.transaction_version)
    return CatalogState(
        cluster_id=id_text(random_id()),
        node_id=properties.node_id,
        starts=1,
        transaction_version=properties.transaction_version,
        property_transaction_version=properties.transaction_version,
    )


def start(path: Path, properties: BrokerProperties) -> tuple[DataDirectory, CatalogState, LogEnds]:
    directory = DataDirectory(path)
    try:
        durable_ends = directory.read_log_ends()
        return directory, directory.start(properties), durable_ends
    except BaseException:
        directory.close()
        raise
