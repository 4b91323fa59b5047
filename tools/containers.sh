#!/bin/bash
# containers.sh prepare|test|down: the tests that need containers, wherever an engine runs or can be started.
#
# prepare            an engine that answers, and the images on it; to be started early, in the background
# test [PYTEST ...]  prepare, the tests in containers, down; arguments take the place of the selection below
# down               end the engine, if it was started here
#
# Where no engine can run, prepare and test say so and fail. NO_CONTAINERS=1 leaves the tests out on purpose. Other
# variables: docker/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."

home=${SPARK_2PC_DOCKER_DIR:-$PWD/.cache/docker}
mkdir -p "$home"

# What containers alone can do, of the tests that any provider serves one version's worth of each kind, and those that
# need a PostgreSQL with ICU.
selection=(
    tests/integration/containers
    tests/integration/writer/test_transactions.py
    tests/integration/postgres/test_catalog.py::test_a_key_compares_text_as_its_column_does
    tests/integration/verification/test_one_table.py::test_texts_that_a_collation_takes_for_equal
    -k "not tv0 and not tv1"
)

loudly() {
    echo "=================================================================" >&2
    echo "$*" >&2
    echo "=================================================================" >&2
}

prepare() {
    # One at a time: the one that was started early, and the one of the tests, which waits for it.
    exec 9>"$home/prepare.lock"
    flock 9
    local begun=$SECONDS images
    if ! DOCKER_HOST=$(docker/engine.sh start 9>&-); then
        loudly "NO CONTAINER ENGINE RUNS HERE, AND NONE CAN BE STARTED: THE TESTS IN CONTAINERS HAVE NOT RUN." \
            "SET NO_CONTAINERS=1 TO LEAVE THEM OUT ON PURPOSE."
        return 1
    fi
    export DOCKER_HOST
    if ! images=$(docker/images.sh 9>&-); then
        loudly "NO IMAGES FOR THE CONTAINERS: THE TESTS IN CONTAINERS HAVE NOT RUN."
        return 1
    fi
    flock --unlock 9
    echo "containers: engine and images in $((SECONDS - begun)) s: $DOCKER_HOST ${images//$'\n'/ }"
    # shellcheck disable=SC2163 # each line is an assignment
    while read -r assignment; do export "$assignment"; done <<<"$images"
}

sweep() { # what a killed test left, on an engine that goes on; then our own engine
    [ -n "${DOCKER_HOST:-}" ] || return 0
    local filter="label=spark-2pc.run=$SPARK_2PC_CONTAINERS_RUN"
    docker ps --all --quiet --filter "$filter" | xargs --no-run-if-empty docker rm --force --volumes >/dev/null
    docker network ls --quiet --filter "$filter" | xargs --no-run-if-empty docker network rm >/dev/null
    docker/engine.sh stop
}

run_tests() {
    export SPARK_2PC_CONTAINERS_RUN=$$
    trap sweep EXIT
    prepare
    [ $# -gt 0 ] || set -- "${selection[@]}"
    .venv/bin/python -m pytest --provider containers --no-skips "$@"
}

if [ "${NO_CONTAINERS:-}" = 1 ] && [ "${1:-}" != down ]; then
    loudly "NO_CONTAINERS=1: THE TESTS IN CONTAINERS ARE LEFT OUT."
    exit 0
fi
case ${1:-} in
    prepare) prepare ;;
    test) run_tests "${@:2}" ;;
    down) docker/engine.sh stop ;;
    *)
        echo "containers: say prepare, test or down" >&2
        exit 2
        ;;
esac
