#!/bin/bash
# Makes the image that the others are built on from Debian packages alone. Needs root, mmdebstrap and a Docker engine.
set -euo pipefail

image=${1:-spark-2pc-base:trixie}
unfinished=$image-unfinished
log=$(mktemp)
trap 'rm -f "$log"' EXIT
packages=openjdk-21-jre-headless,postgresql-17,python3-venv

if ! command -v mmdebstrap >/dev/null; then
    echo "base: apt-get install mmdebstrap" >&2
    {
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap
    } >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        exit 1
    }
fi

# - force-unsafe-io: a half-made image is thrown away anyway.
# - Documentation, and the libraries of PostgreSQL's JIT compiler (150 MB, see jit=off in postgres/entrypoint.sh), stay
#   out.
# - openjdk's installation fails without a folder for manual pages; a cluster is made when a container starts.
# shellcheck disable=SC2016 # expanded by mmdebstrap
prepare='mkdir -p "$1/usr/share/man/man1" "$1/usr/share/man/man7" "$1/etc/postgresql-common"
echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.conf"'

mmdebstrap --quiet --variant=essential --include="$packages" \
    --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/lib/*/libLLVM*' \
    --dpkgopt='path-exclude=/usr/lib/*/libz3*' \
    --setup-hook="$prepare" \
    trixie - | docker import - "$unfinished" >/dev/null

# Named only now, after the whole pipe has succeeded: an archive that was cut off must not become the base.
docker tag "$unfinished" "$image"
docker rmi "$unfinished" >/dev/null
