#!/bin/bash
# Starts the broker once while the image is built, and keeps the classes that it loaded in the form in which Java loads
# them fast: a start takes half as long then, and half of the processor.
set -euo pipefail

export KAFKA_LOG_DIRS=/tmp/archive-classes KAFKA_HEAP_OPTS="-Xmx512m -XX:+UseSerialGC"
export KAFKA_NODE_ID=1 KAFKA_PROCESS_ROLES=broker,controller KAFKA_CONTROLLER_LISTENER_NAMES=CONTROLLER
export KAFKA_LISTENERS=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
export KAFKA_CONTROLLER_QUORUM_VOTERS=1@127.0.0.1:9093
log=/tmp/archive-classes.log

bash /opt/kafka/entrypoint.sh >"$log" 2>&1 &
broker=$!
for _ in $(seq 600); do
    if grep -q 'Kafka Server started' "$log"; then
        break
    fi
    if ! kill -0 "$broker"; then
        tail -n 40 "$log" >&2
        exit 1
    fi
    sleep 0.1
done
kill -TERM "$broker"
# 143: it ended by the signal, as it was told.
wait "$broker" || [ $? = 143 ]
rm -rf "$KAFKA_LOG_DIRS" "$log"
ls -l /opt/kafka/classes.jsa
