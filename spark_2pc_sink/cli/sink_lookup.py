"""The owners of transactions: the sinks in the database that the command line names, if it names one."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from contextlib import closing

from spark_2pc_sink.cli.options import given_options
from spark_2pc_sink.errors import StateStoreError
from spark_2pc_sink.options import RecoveryOptions
from spark_2pc_sink.recovery.api import open_store
from spark_2pc_sink.transactions.remedies import KnownSinks

_log = logging.getLogger(__name__)


def look_up_sinks(given: argparse.Namespace, kafka: Mapping[str, str]) -> KnownSinks | None:
    """The sinks, for remedies.

    Args:
        given: the command line.
        kafka: the cluster, used only in options.

    Returns:
        None if no database is named, or it cannot be read: the request to Kafka is answered nevertheless, and the log
        says that the database was not read.
    """
    said = {name: value for name, value in given_options(given).items() if name not in ("transactional_id", "reason")}
    if "database" not in said:
        return None
    options = RecoveryOptions.parse(transactional_id="transactions", kafka=kafka, **said)
    try:
        with closing(open_store(options)) as store:
            return KnownSinks.of([*store.read_all(), *store.read_lost()])
    except StateStoreError as error:
        _log.warning("whether a transaction is a sink's cannot be told: %s", error)
        return None
