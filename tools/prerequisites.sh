#!/bin/bash
# prerequisites.sh [--optional] python|java|maven|pgbouncer|chromium|promtool|compiler|kerberos...: makes sure that the named programs are there.
# What is missing is installed where root and apt are at hand; else one line says what to install. With --optional,
# that is no failure: some tests are skipped without.
set -euo pipefail

java_version_min=17
python=${PYTHON:-python3}
log=.cache/apt.log

optional=false
if [ "${1:-}" = --optional ]; then
    optional=true
    shift
fi

have_python() {
    # A Debian python3 without python3-venv has venv, but not what gives the new environment its pip.
    "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

have_java() {
    local java version
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        [ -x "$java" ] || continue
        version=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
        [ "${version:-0}" -ge "$java_version_min" ] && return 0
    done
    return 1
}

have_maven() { command -v mvn >/dev/null; }

have_pgbouncer() { PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null; }

have_chromium() { command -v chromium >/dev/null; }

have_promtool() { command -v promtool >/dev/null; }

have_compiler() { command -v cc >/dev/null; }

have_kerberos() {
    local program
    for program in krb5kdc kadmin.local kinit krb5-config gcc; do
        PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || return 1
    done
}

apt() { # apt COMMAND...: apt-get without a word, unless it fails
    DEBIAN_FRONTEND=noninteractive apt-get "$@" >>"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        echo "setup: apt-get $* failed (all of it is in $log)" >&2
        "$optional" || exit 1
    }
}

declare -A what=(
    [python]="Python 3.10 or later with venv"
    [java]="Java $java_version_min or later (Spark and the Kafka broker under test run on it)"
    [maven]="Maven (it fetches the Kafka broker under test)"
    [pgbouncer]="PgBouncer (some tests reach PostgreSQL through it)"
    [chromium]="Chromium (tests of the dashboard use it as a person does)"
    [promtool]="promtool (it tests the alert rules)"
    [compiler]="a C compiler (tests set the clocks of processes, and let their disks fail, by small libraries)"
    [kerberos]="a Kerberos realm, and what the package gssapi is built with (tests of logins by tickets use them)"
)
declare -A packages=(
    [python]="python3 python3-venv"
    [java]="openjdk-$java_version_min-jre-headless"
    [maven]="maven"
    [pgbouncer]="pgbouncer"
    [chromium]="chromium"
    [promtool]="prometheus"
    [compiler]="gcc libc6-dev"
    [kerberos]="krb5-kdc krb5-admin-server krb5-user libkrb5-dev gcc python3-dev"
)

missing=()
for wanted in "$@"; do
    "have_$wanted" || missing+=("$wanted")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    for wanted in "${missing[@]}"; do
        echo "setup: missing: ${what[$wanted]}; on Debian: apt-get install ${packages[$wanted]}" >&2
    done
    "$optional" && exit 0
    exit 1
fi
mkdir -p "$(dirname "$log")"
# A fresh image has no package lists; an old one has lists of packages that are gone.
apt update
for wanted in "${missing[@]}"; do
    echo "setup: apt-get install ${packages[$wanted]}"
    read -ra names <<<"${packages[$wanted]}"
    apt install -y --no-install-recommends "${names[@]}"
    "have_$wanted" || { echo "setup: still missing after the installation: ${what[$wanted]}" >&2; "$optional" || exit 1; }
done
