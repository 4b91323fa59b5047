#!/bin/bash
# Builds all images without an image registry (README.md). Run `make setup` first: it fetches the broker's jars.
# Needs root (for mmdebstrap) and a Docker engine; images that are there already are kept.
set -euo pipefail
cd "$(dirname "$0")"

base=spark-2pc-base:trixie
kafka=${SPARK_2PC_KAFKA_IMAGE:-spark-2pc-kafka:4.4.0}
postgres=${SPARK_2PC_POSTGRES_IMAGE:-spark-2pc-postgres:17}
job=${SPARK_2PC_JOB_IMAGE:-spark-2pc-job}
libs=${SPARK_2PC_KAFKA_LIBS:-../.cache/kafka-4.4.0/libs}

missing() { ! docker image inspect "$1" >/dev/null 2>&1; }

if missing "$base"; then
    base/build.sh "$base"
fi
if missing "$kafka"; then
    rm -rf kafka/libs
    cp -r "$libs" kafka/libs
    docker build --quiet --build-arg BASE="$base" --tag "$kafka" kafka
    rm -rf kafka/libs
fi
if missing "$postgres"; then
    docker build --quiet --build-arg BASE="$base" --tag "$postgres" postgres
fi
# Only where asked for: it fetches a gigabyte of Python packages, and no test needs it. From the host's network, because
# an engine for tests gives its containers no way out.
if [ "${1:-}" = job ] && missing "$job"; then
    docker build --quiet --network=host --build-arg BASE="$base" --tag "$job" --file spark/Dockerfile ..
fi
