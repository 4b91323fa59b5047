#!/bin/bash
# Writes server.properties from the environment, formats the storage once, and becomes the broker.
#
# As in apache/kafka: KAFKA_A_B=v is the property a.b=v; __ in a name is _, ___ is -. Also CLUSTER_ID, KAFKA_HEAP_OPTS,
# KAFKA_OPTS.
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

# In one order always, by which archive-classes.sh's archive is recognised as fitting; one that does not fit is ignored.
jars=(/opt/kafka/libs/*.jar)
CLASSPATH=$(IFS=: && echo "${jars[*]}")
export CLASSPATH
archive=/opt/kafka/classes.jsa
read -ra options <<<"${KAFKA_HEAP_OPTS:--Xms128m -Xmx512m} ${KAFKA_OPTS:-}"
java=(java -Xlog:disable -Xshare:auto -XX:SharedArchiveFile="$archive" "${options[@]}"
    -Dlog4j2.configurationFile=file:/opt/kafka/log4j2.properties)
if [ ! -e "$archive" ]; then
    java=(java -XX:ArchiveClassesAtExit="$archive" "${java[@]:4}")
fi

if [ ! -e "$KAFKA_LOG_DIRS/meta.properties" ]; then
    "${java[@]}" kafka.tools.StorageTool format --cluster-id="${CLUSTER_ID:-4L6g3nShT-eMCtK--X86sw}" \
        --config="$properties"
fi
exec "${java[@]}" kafka.Kafka "$properties"
