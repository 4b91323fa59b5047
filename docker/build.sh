#!/bin/bash
# build.sh kafka|postgres|job...: builds the named images without an image registry (README.md), and their base first.
# Needs a Docker engine and, for the base, root. An image that is there already is kept.
set -euo pipefail
cd "$(dirname "$0")"

base=spark-2pc-base:trixie
libs=${SPARK_2PC_KAFKA_LIBS:-../.cache/kafka-4.4.0/libs}

missing() { ! docker image inspect "$1" >/dev/null 2>&1; }

# The builder without a plugin says on every build that it is old: what docker says is shown when it fails.
build() {
    local said
    said=$(DOCKER_BUILDKIT=0 docker build --build-arg BASE="$base" "$@" 2>&1) || {
        tail -n 40 <<<"$said" >&2
        return 1
    }
}

build_kafka() {
    [ -d "$libs" ] || {
        echo "build: no jars of Kafka in $libs: run make setup first" >&2
        return 1
    }
    rm -rf kafka/libs
    cp -r "$libs" kafka/libs
    build --network none --tag spark-2pc-kafka:4.4.0 kafka
    rm -rf kafka/libs
}

build_postgres() { build --network none --tag spark-2pc-postgres:17 postgres; }

# From the host's network, because an engine for tests gives its containers no way out; and with the certificates that
# this machine trusts, because its way to the package index may be a proxy with one of its own.
build_job() {
    local certificates=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
    trap 'rm -f spark/certificates/host.crt' EXIT
    [ ! -s "$certificates" ] || cp "$certificates" spark/certificates/host.crt
    build --network host --tag spark-2pc-job --file spark/Dockerfile ..
}

declare -A images=([kafka]=spark-2pc-kafka:4.4.0 [postgres]=spark-2pc-postgres:17 [job]=spark-2pc-job)

[ $# -gt 0 ] || set -- kafka postgres
if missing "$base"; then
    base/build.sh "$base"
fi
for name in "$@"; do
    image=${images[$name]:?"there is no such image: $name"}
    if missing "$image"; then
        "build_$name"
    fi
done
