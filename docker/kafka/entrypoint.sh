#!/bin/bash
# Writes server.properties from the environment, formats the storage once, and becomes the broker.
#
# As in apache/kafka: KAFKA_A_B=v is the property a.b=v; __ in a name is _, ___ is -. Also CLUSTER_ID, KAFKA_HEAP_OPTS,
# KAFKA_OPTS. Beside that, FEATURES="transaction.version=0 …" sets feature levels when the storage is formatted.
set -euo pipefail

properties=/etc/kafka/server.properties

while IFS= read -r -d '' variable; do
    name=${variable%%=*}
    case $name in
        KAFKA_HEAP_OPTS | KAFKA_OPTS) continue ;;
        KAFKA_*) ;;
        *) continue ;;
    esac
    name=${name#KAFKA_}
    name=${name//___/-}
    name=${name//__/$'\1'} # kept apart from the single ones, which become dots
    name=${name//_/.}
    name=${name//$'\1'/_}
    printf '%s=%s\n' "${name,,}" "${variable#*=}"
done < <(env --null) >"$properties"

# Quoted: Java expands the asterisk, the shell must not.
export CLASSPATH='/opt/kafka/libs/*'
java=(
    java
    ${KAFKA_HEAP_OPTS:--Xms128m -Xmx512m}
    -XX:+UseSerialGC
    -XX:TieredStopAtLevel=1
    -Dlog4j2.configurationFile=file:/opt/kafka/log4j2.properties
    ${KAFKA_OPTS:-}
)

if [ ! -e "$KAFKA_LOG_DIRS/meta.properties" ]; then
    features=()
    for feature in ${FEATURES:-}; do
        features+=("--feature=$feature")
    done
    "${java[@]}" kafka.tools.StorageTool format --cluster-id="${CLUSTER_ID:-4L6g3nShT-eMCtK--X86sw}" \
        --config="$properties" "${features[@]}"
fi
exec "${java[@]}" kafka.Kafka "$properties"
