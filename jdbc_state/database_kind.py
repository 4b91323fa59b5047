"""The kind of a database: PostgreSQL, a service or extension of it, or another one that speaks its protocol.

Other databases answer like PostgreSQL, even with its version number, and lack features that the state row needs. They
are recognised by ``version()``; the few that copy it, by objects that only their catalogs have. Services of PostgreSQL
itself are recognised only for their limits.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import psycopg2

from jdbc_state.errors import ConfigurationError
from jdbc_state.sink_log import sink_log
from jdbc_state.sqlstate import INSUFFICIENT_PRIVILEGE, describe

_log = sink_log(__name__)
#: Beginnings of version() for PostgreSQL and EDB's builds of it, with the major version.
_GENUINE: Final = re.compile(r"(?:PostgreSQL|EnterpriseDB) (\d+)")
#: The first major version with all needed features.
_MAJOR_MIN: Final = 14
_END: Final = "pg_terminate_backend, which ends the transaction of an older driver"
_TRANSACTIONS: Final = "transactions of several statements over several tables"
_CONFLICT: Final = "INSERT … ON CONFLICT as PostgreSQL has it"
#: By a pattern of their version(): name, and the needed features that they lack.
_OTHERS: Final = (
    (r"^CockroachDB", "CockroachDB", _END),
    (r"-YB-", "YugabyteDB", "a COPY that always refuses an existing key (yugabyte-db#3219, #26204)"),
    (r"Redshift", "Amazon Redshift", f"{_CONFLICT}, and COPY FROM STDIN"),
    (r"Greenplum|Greengage|WarehousePG", "Greenplum", f"{_CONFLICT}: a unique key must contain the distribution key"),
    (r"Cloudberry", "Apache Cloudberry", f"{_CONFLICT}: a unique key must contain the distribution key"),
    (r"openGauss|GaussDB|KingbaseES|Vastbase", "openGauss", _CONFLICT),
    (r"Materialize", "Materialize", _CONFLICT),
    (r"RisingWave", "RisingWave", _TRANSACTIONS),
    (r"CrateDB", "CrateDB", _TRANSACTIONS),
    (r"QuestDB", "QuestDB", _TRANSACTIONS),
    (r"H2$|using H2", "H2", "COPY FROM STDIN"),
)
#: Signs of a database whose version() is PostgreSQL's. Each line exists or not, on any server from 14 on.
_SIGNS: Final = """
SELECT 'extension ' || extname FROM pg_extension WHERE extname IN ('citus', 'plpgsql', 'timescaledb')
UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE proname IN ('aurora_version', 'pg_terminate_backend')
UNION ALL SELECT 'role ' || rolname FROM pg_roles WHERE rolname = 'supabase_admin'
UNION ALL SELECT 'relation sys.jobs' WHERE to_regclass('sys.jobs') IS NOT NULL
UNION ALL SELECT 'setting ' || name FROM unnest(ARRAY['neon.tenant_id', 'alloydb.iam_authentication']) AS name
    WHERE current_setting(name, true) IS NOT NULL
"""
#: SQLSTATEs for an unsupported feature, and for unknown syntax, tables, columns and functions.
_NOT_UNDERSTOOD: Final = frozenset({"0A000", "42601", "42P01", "42703", "42883"})
#: Services and extensions of PostgreSQL: by a sign, name and limits.
_SERVICES: Final = (
    ("function aurora_version", "Amazon Aurora", "name the cluster endpoint, which follows a failover"),
    ("setting alloydb.iam_authentication", "AlloyDB", "name the primary instance, not a read pool"),
    (
        "setting neon.tenant_id",
        "Neon",
        "a compute that scales to zero ends its sessions, and the next batch waits until it is back",
    ),
    (
        "role supabase_admin",
        "Supabase",
        "port 6543 of its pooler gives each transaction another session: a driver is visible only during transactions",
    ),
    (
        "extension citus",
        "Citus",
        "an upsert is INSERT … SELECT … ON CONFLICT from a local table, which is refused for some distributed tables",
    ),
    (
        "extension timescaledb",
        "TimescaleDB",
        "the unique key of a hypertable, and so of an upsert, contains its time column",
    ),
)


@dataclass(frozen=True)
class DatabaseKind:
    name: str
    version: str
    lacks: str = ""
    limits: str = ""


#: The kind assumed until the database is queried.
PLAIN: Final = DatabaseKind("PostgreSQL", "")


def find_kind(driver: Any) -> DatabaseKind:
    autocommit = driver.autocommit
    # Without a BEGIN, which another database may refuse with its isolation level.
    driver.autocommit = True
    with driver.cursor() as cursor:
        cursor.execute("SELECT version()")
        [(version,)] = cursor.fetchall()
        kind = kind_by_version(version)
        if kind is None:
            try:
                cursor.execute(_SIGNS)
                kind = kind_by_signs(version, {sign for (sign,) in cursor})
            except psycopg2.Error as error:
                if error.pgcode == INSUFFICIENT_PRIVILEGE:
                    kind = DatabaseKind("PostgreSQL", version)
                elif error.pgcode in _NOT_UNDERSTOOD:
                    kind = DatabaseKind("not PostgreSQL", version, lacks=f"its system catalogs ({describe(error)})")
                else:
                    raise
    driver.autocommit = autocommit
    return kind


def check_kind(kind: DatabaseKind, label: str, *, accepted: str | None) -> None:
    """Refuse a database that lacks features the sink needs, unless a person has tested and accepted it."""
    if not kind.lacks:
        return
    if (accepted or "").casefold() == kind.name.casefold():
        _log.warning("%s is %s, which lacks %s; used because of accept_database", label, kind.name, kind.lacks)
        return
    wanted = f"PostgreSQL {_MAJOR_MIN} or later"
    rule = f"must be {wanted}; it is {kind.name} ({kind.version}), which lacks {kind.lacks}. Nothing was written"
    remedy = (
        f"use {wanted}. If you have tested crashes of driver and servers with this database, "
        f"pass accept_database={kind.name!r}"
    )
    raise ConfigurationError(option="database", value=label, rule=rule, remedy=remedy)


def kind_by_signs(version: str, signs: AbstractSet[str]) -> DatabaseKind:
    """The kind of a database with PostgreSQL's version()."""
    if "relation sys.jobs" in signs and "extension plpgsql" not in signs:
        return DatabaseKind("Aurora DSQL", version, lacks="temporary tables, savepoints and large transactions")
    if "function pg_terminate_backend" not in signs:
        return DatabaseKind("not PostgreSQL", version, lacks=_END)
    found = [(name, limits) for sign, name, limits in _SERVICES if sign in signs]
    named = f" ({', '.join(name for name, _ in found)})" if found else ""
    return DatabaseKind(f"PostgreSQL{named}", version, limits="; ".join(f"{name}: {limits}" for name, limits in found))


def kind_by_version(version: str) -> DatabaseKind | None:
    """The kind of another database, or of an old PostgreSQL, by its version(); None for PostgreSQL's."""
    for pattern, name, lacks in _OTHERS:
        if re.search(pattern, version):
            return DatabaseKind(name, version, lacks=lacks)
    genuine = _GENUINE.match(version)
    if genuine is None:
        name = version.partition(" ")[0] or "not PostgreSQL"
        return DatabaseKind(name, version, lacks="the version() of PostgreSQL")
    if int(genuine[1]) < _MAJOR_MIN:
        return DatabaseKind(f"PostgreSQL {genuine[1]}", version, lacks=f"a time limit of {_END}")
    return None
