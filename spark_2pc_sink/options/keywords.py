"""The keywords of a public call: an unknown or missing one is refused with the right name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import nearest
from spark_2pc_sink.options.text_checks import check_texts, shown

P = ParamSpec("P")
R = TypeVar("R")

#: Names used by Spark's JDBC source, PGStyx, Flink, Delta and others, letters and digits only.
KNOWN_ELSEWHERE = {
    "url": "database",
    "databaseurl": "database",
    "dsn": "database",
    "dbtable": "table",
    "tablename": "table",
    "writemode": "mode",
    "outputmode": "mode",
    "mergekeys": "upsert_keys",
    "upsertkeycolumns": "upsert_keys",
    "primarykey": "upsert_keys",
    "orderby": "upsert_order_by",
    "transactionalidprefix": "transactional_id",
    "txnappid": "transactional_id",
    "bootstrapservers": "kafka",
    "kafkabootstrapservers": "kafka",
    "kafkaoptions": "kafka",
    "includeheaders": "headers",
    "maxretries": "batch_attempts_max",
    "querytimeout": "statement_timeout_ms",
    "commitlogtable": "state_table",
    "commitlogretentionepochs": "history_batches",
    "createtablecolumntypes": "create_table",
    "partitionby": "partition",
    # An option of the sink, which decides in advance; for `recover` a person decides.
    "acceptreplay": "decision",
}


def check_keywords(given: Mapping[str, object], known: Mapping[str, bool]) -> None:
    """Refuse calls that would be a Python ``TypeError``, before any value is used.

    Args:
        given: the keywords of a call. A required one that is None counts as missing.
        known: the keywords that exist, and whether each is required.

    Raises:
        ConfigurationError: an unknown keyword (with the nearest that exists), a missing one, or an invalid text (see
            `check_texts`).
    """
    for name in given:
        if name not in known:
            remedy = nearest(name, known, known_elsewhere=KNOWN_ELSEWHERE)
            told = shown(name, given[name])
            raise ConfigurationError(option=name, value=told, rule="there is no such option", remedy=remedy)
    for name, required in known.items():
        if required and given.get(name) is None:
            raise ConfigurationError(option=name, value=None, rule="it is required", remedy=f"pass {name}=")
    for name, value in given.items():
        check_texts(name, value)


def checks_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Let calls of a function with explicit keywords fail like `check_keywords`.

    IDEs, type checkers and ``inspect.signature`` see the function's own signature.
    """
    parameters = signature(function).parameters.values()
    known = {item.name: item.default is Parameter.empty for item in parameters if item.kind is Parameter.KEYWORD_ONLY}

    @wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        check_keywords(given, known)
        return function(*args, **given)

    return checked
