"""The directory of a node's data, laid out as Kafka lays out its ``log.dirs``.

::

    .lock                       locked while a process has the directory
    catalog.json                everything that the node knows, replaced as a whole
    catalog.json.previous       the version before the last change, to recover from a damaged catalog.json
    log-ends.json               how far each log was on disk at the last start or clean stop
    <topic>-<partition>/        the segments of one partition, and partition.metadata with the topic's id
    <topic>-<partition>.<id>-delete/    a deleted topic, being removed
    <topic>-<partition>.<id>-stray/     records of a topic that does not exist, kept for inspection

Every function here blocks on the disk: the catalog calls them in a thread.

A log only grows, so the offsets of any earlier moment hold. A partition is identified by its topic's id, because a
topic that is recreated under the same name begins at 0.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import uuid
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias
from uuid import UUID

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.reference.config.properties import BrokerProperties, check_level
from spark_2pc_sink.reference.metadata.catalog_state import (
    CatalogState,
    Topic,
    id_of_text,
    id_text,
    random_id,
    read_checked,
    read_state,
    write_checked,
    write_state,
)
from spark_2pc_sink.reference.storage.files import sync_directory

#: Topic id and partition to the offset after the last record.
LogEnds: TypeAlias = Mapping[tuple[UUID, int], int]


_LOCK: Final = ".lock"
_CATALOG: Final = "catalog.json"
#: Kafka writes it into its own directories.
_META: Final = "meta.properties"
_PARTITION_META: Final = "partition.metadata"
_UNFINISHED: Final = ".tmp"
_PREVIOUS: Final = ".previous"
_LOG_ENDS: Final = "log-ends.json"
_log = logging.getLogger(__name__)
_PARTITION_DIRECTORY: Final = re.compile(r"[a-zA-Z0-9._-]+-\d+")


class DataDirectory:
    """A directory that this process locks from the constructor to :meth:`close`."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
            self._must_be_unused()
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
        self._replace(_CATALOG, write_state(state))

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
                    if directory.name in existing and _topic_id(directory / _PARTITION_META) not in {None, *owners}:
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
        found = _topic_id(directory / _PARTITION_META)
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
                if directory.name in existing and _topic_id(directory / _PARTITION_META) in owners:
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

    def partitions_with_records(self) -> set[str]:
        return {segment.parent.name for segment in self.path.glob("*/*.log") if segment.stat().st_size}

    def _make_room(self, directory: Path) -> None:
        """Rename the directory of a topic that does not exist, with Kafka's suffixes."""
        used = _has_records(directory)
        away = self.path / f"{directory.name}.{uuid.uuid4().hex}-{'stray' if used else 'delete'}"
        directory.rename(away)
        if used:
            _log.warning("%s contains records of an unknown topic; renamed it to %s", directory, away.name)

    def _must_be_unused(self) -> None:
        for entry in self.path.iterdir():
            if entry.name == _META or (entry.is_dir() and _PARTITION_DIRECTORY.fullmatch(entry.name)):
                raise self._refused(
                    f"contains {entry.name} but no {_CATALOG}: the data of another server, or a lost file",
                    "name an empty directory, or restore the file",
                )

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


def _topic_id(file: Path) -> uuid.UUID | None:
    """The id in a ``partition.metadata``; None if a crash kept it from the disk."""
    try:
        _, _, text = file.read_text().partition("topic_id: ")
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
        state = _started(directory, properties)
    except BaseException:
        directory.close()
        raise
    return directory, state, durable_ends


def _started(directory: DataDirectory, properties: BrokerProperties) -> CatalogState:
    found = directory.read_catalog()
    if found is None:
        state = new_state(properties)
    elif found.node_id != properties.node_id:
        rule = f"{directory.path} belongs to node {found.node_id}"
        raise refused("node.id", properties.node_id, rule, "use that id, or another directory")
    else:
        # The last change of the level wins: by kafka-features.sh, or by the property.
        same = properties.transaction_version == found.property_transaction_version
        level = found.transaction_version if same else properties.transaction_version
        check_level(properties, level)
        directory.remove_topics(found.removing, live=found.topics)
        state = replace(
            found,
            starts=found.starts + 1,
            transaction_version=level,
            property_transaction_version=properties.transaction_version,
            removing=(),
        )
    directory.write_catalog(state)
    directory.make_partitions(state.topics.values(), starting=True)
    return state


def store(directory: DataDirectory, state: CatalogState, *, before: CatalogState) -> None:
    """Write a changed state, and make directories for new partitions. After an OSError the state is unchanged."""
    # A crash between the two leaves a topic without directories; the next start creates them.
    directory.write_catalog(state)
    try:
        changed = [topic for topic in state.topics.values() if topic is not before.topics.get(topic.name)]
        directory.make_partitions(changed, live=state.topics.values())
    except OSError:
        # The change is answered as failed, so a start must not find it made. If the disk is too full for that too,
        # the next change takes it back.
        with suppress(OSError):
            directory.write_catalog(before)
        raise
