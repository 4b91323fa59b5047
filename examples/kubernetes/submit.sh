#!/bin/sh
# A plain spark-submit in cluster mode: Spark makes the driver's pod and its headless service, and does not restart it.
exec spark-submit --master "k8s://$1" --deploy-mode cluster --name orders \
    --conf spark.kubernetes.container.image=registry.example/orders:1 \
    --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark \
    --conf spark.kubernetes.driver.podTemplateFile="$(dirname "$0")/driver-pod.yaml" \
    --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.data.options.claimName=orders \
    --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.data.mount.path=/data \
    --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName=orders \
    --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.data.mount.path=/data \
    --conf spark.executor.instances=2 \
    local:///opt/job/orders.py
