"""The files of the catalog at a start, and at a change of its state."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import BrokerProperties, check_keeping_level
from spark_2pc_sink.reference.metadata.catalog_state import CatalogState, Topic, id_text, random_id
from spark_2pc_sink.reference.metadata.data_directory import DataDirectory
from spark_2pc_sink.reference.metadata.log_ends import LogEnds


def new_state(properties: BrokerProperties) -> CatalogState:
    """The state of a new cluster, at its first start.

    Raises:
        ConfigurationError: its level is too low for a property.
    """
    check_keeping_level(properties, properties.transaction_version)
    return CatalogState(
        cluster_id=id_text(random_id()),
        node_id=properties.node_id,
        directory_id=random_id(),
        starts=1,
        transaction_version=properties.transaction_version,
        property_transaction_version=properties.transaction_version,
    )


def start(path: Path, properties: BrokerProperties) -> tuple[DataDirectory, CatalogState, LogEnds]:
    """Take a directory, count the start, and write that down.

    Raises:
        ConfigurationError: the directory is in use, damaged, or of another node; or its level is too low for a
            property.
    """
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
        raise ConfigurationError(
            option="node.id",
            value=properties.node_id,
            rule=f"{directory.path} belongs to node {found.node_id}",
            remedy="use that id, or another directory",
        )
    else:
        level = _level_at_start(found, properties)
        check_keeping_level(properties, level)
        directory.remove_topics(found.removing, live=found.topics)
        state = replace(
            found,
            starts=found.starts + 1,
            transaction_version=level,
            property_transaction_version=properties.transaction_version,
            removing=(),
        )
    directory.write_catalog(state)
    directory.write_meta(state)
    directory.make_partitions(state.topics.values(), starting=True)
    return state


def _level_at_start(found: CatalogState, properties: BrokerProperties) -> int:
    """Whoever changed the level last is believed: kafka-features.sh, or who wrote another property."""
    same = properties.transaction_version == found.property_transaction_version
    return found.transaction_version if same else properties.transaction_version


def store(directory: DataDirectory, state: CatalogState, made: Iterable[Topic], *, before: CatalogState) -> None:
    """Write a changed state, and make directories for the partitions of the topics that were made.

    Raises:
        OSError: the disk refused, and the state is as before.
    """
    # A crash between the two leaves a topic without directories, and the next start makes them.
    directory.write_catalog(state)
    try:
        directory.make_partitions(made, live=state.topics.values())
    except OSError:
        # The change is answered as failed, so no start may find it made. Is the disk too full for that as well, the
        # next change takes it back.
        with suppress(OSError):
            directory.write_catalog(before)
        raise
