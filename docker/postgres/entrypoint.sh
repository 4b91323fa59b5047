#!/bin/bash
# Makes a cluster once, and becomes the server.
#
# As in the official image: POSTGRES_PASSWORD (required), POSTGRES_USER, POSTGRES_DB, POSTGRES_INITDB_ARGS, and the
# command `postgres -c name=value …`.
set -euo pipefail

user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    read -ra arguments <<<"${POSTGRES_INITDB_ARGS:-}"
    initdb --pgdata="$PGDATA" --username="$user" --pwfile=<(echo "${POSTGRES_PASSWORD:?is required}") \
        --auth-host=scram-sha-256 --auth-local=trust --encoding=UTF8 --locale=C.UTF-8 --no-instructions "${arguments[@]}" >/dev/null
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    # The image has no JIT compiler: it is a third of PostgreSQL's size, and of no use to statements this short.
    echo "jit = off" >>"$PGDATA/postgresql.conf"
    if [ "$database" != postgres ]; then
        echo "CREATE DATABASE \"$database\"" | postgres --single -j -D "$PGDATA" postgres >/dev/null
    fi
fi

if [ "${1:-}" = postgres ]; then
    shift
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
