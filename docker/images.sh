#!/bin/bash
# images.sh: makes sure that the engine has the two servers' images, and prints which, as assignments to be exported.
#
#     export $(docker/images.sh)
#
# SPARK_2PC_KAFKA_IMAGE and SPARK_2PC_POSTGRES_IMAGE, where set, name the images. Else they are the official ones; where
# no registry gives them, those that build.sh builds.
set -euo pipefail
cd "$(dirname "$0")"

pull_deadline_s=300

present() { docker image inspect "$1" >/dev/null 2>&1; }

pull() { timeout "$pull_deadline_s" docker pull --quiet "$1" >/dev/null 2>&1; }

choose() { # choose GIVEN OFFICIAL OURS FOLDER: the image to be used
    local given=$1 official=$2 ours=$3 folder=$4 image
    if [ -n "$given" ]; then
        present "$given" || pull "$given" || {
            echo "images: there is no image $given, here or in a registry" >&2
            return 1
        }
        echo "$given"
        return
    fi
    for image in "$official" "$ours"; do
        if present "$image"; then
            echo "$image"
            return
        fi
    done
    if pull "$official"; then
        echo "$official"
        return
    fi
    echo "images: no registry gives $official: building $ours" >&2
    ./build.sh "$folder" >&2
    echo "$ours"
}

kafka=$(choose "${SPARK_2PC_KAFKA_IMAGE:-}" apache/kafka:4.4.0 spark-2pc-kafka:4.4.0 kafka)
postgres=$(choose "${SPARK_2PC_POSTGRES_IMAGE:-}" postgres:17 spark-2pc-postgres:17 postgres)
echo "SPARK_2PC_KAFKA_IMAGE=$kafka"
echo "SPARK_2PC_POSTGRES_IMAGE=$postgres"
