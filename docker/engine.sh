#!/bin/bash
# engine.sh start|stop: a Docker engine for tests where none answers.
#
# start  prints the DOCKER_HOST of the engine that answers already ($DOCKER_HOST, else docker's current context); else
#        starts one of our own (root, Linux; Debian's docker.io is installed if need be) and prints its address.
# stop   ends the engine that start started, with all its containers and networks; any other engine is left alone.
#
# SPARK_2PC_DOCKER_DIR is where our own engine keeps everything (default .cache/docker). Images stay there from one
# start to the next.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
home=${SPARK_2PC_DOCKER_DIR:-$root/.cache/docker}
socket=$home/docker.sock
answer_deadline_s=30
#: sun_path of unix(7) has 108 bytes; containerd's longest below our folder is exec/containerd/containerd-debug.sock.
home_characters_max=70

fail() {
    echo "engine: $*" >&2
    exit 1
}

answers() { # answers HOST: an engine answers there
    DOCKER_HOST=$1 timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

answering() { # the address of an engine that answers, which nobody has to start
    local host=${DOCKER_HOST:-}
    command -v docker >/dev/null || return 1
    if [ -z "$host" ]; then
        host=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null) || host=unix:///var/run/docker.sock
    fi
    for host in "$host" "unix://$socket"; do
        if answers "$host"; then
            echo "$host"
            return
        fi
    done
    return 1
}

install() {
    command -v apt-get >/dev/null || fail "no engine answers, and there is no dockerd and no apt-get to install one"
    echo "engine: apt-get install docker.io" >&2
    {
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io
    } >"$home/apt.log" 2>&1 || {
        tail -n 20 "$home/apt.log" >&2
        fail "apt-get failed (all of it is in $home/apt.log)"
    }
}

start() {
    if answering; then
        return
    fi
    [ "$(id -u)" = 0 ] || fail "no engine answers, and only root can start one"
    [ ${#home} -le $home_characters_max ] || fail "$home is too long for the path of a socket: set SPARK_2PC_DOCKER_DIR"
    mkdir -p "$home"
    command -v dockerd >/dev/null || install
    # An engine that was killed leaves these; a stale pid may be somebody else's in the next one's namespace.
    rm -rf "$home/exec" "$home/dockerd.pid" "$socket"

    # - Its own namespaces of processes and mounts: when the first process in them is killed, the kernel ends dockerd,
    #   containerd, every container and every mount.
    #   tini collects the processes that lose their parent there.
    # - No rule of the firewall and no forwarding is touched: published ports go through docker's proxy, on 127.0.0.1
    #   alone; containers of one network reach each other, and nothing else.
    # - No default bridge: every container here is on a network of its own.
    # The pid is written from inside, because it is this process that becomes unshare. Nothing of ours is inherited:
    # a caller that reads our output to its end must not wait for the engine's.
    # shellcheck disable=SC2016 # expanded by the inner shell
    setsid bash -c 'echo $$ >"$0/pid"; exec unshare --pid --fork --kill-child --mount --mount-proc -- "$@"' "$home" \
        tini -g -- dockerd --data-root "$home/root" --exec-root "$home/exec" --pidfile "$home/dockerd.pid" \
        --host "unix://$socket" --storage-driver overlay2 --shutdown-timeout 5 \
        --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --ip 127.0.0.1 \
        --default-address-pool base=172.31.0.0/17,size=24 \
        >"$home/dockerd.log" 2>&1 </dev/null &

    local end=$((SECONDS + answer_deadline_s))
    until answers "unix://$socket"; do
        if [ $SECONDS -ge $end ]; then
            tail -n 20 "$home/dockerd.log" >&2
            stop
            fail "dockerd did not answer within $answer_deadline_s s (all it said is in $home/dockerd.log)"
        fi
        sleep 0.2
    done
    echo "unix://$socket"
}

stop() {
    local pid bridge bridges=()
    [ -s "$home/pid" ] || return 0
    pid=$(cat "$home/pid")
    rm -f "$home/pid"
    # After a restart of the machine the number may be another process's.
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != unshare ]; then
        echo "engine: it has ended already" >&2
        return 0
    fi
    # The bridges of networks are the machine's, not the namespace's: a killed engine would leave them behind.
    if answers "unix://$socket"; then
        export DOCKER_HOST=unix://$socket
        mapfile -t bridges < <(docker network ls --filter driver=bridge --format 'br-{{.ID}}')
        docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes >/dev/null
        docker network prune --force >/dev/null
    fi
    kill -KILL "$pid"
    for _ in $(seq 100); do
        [ -e "/proc/$pid" ] || break
        sleep 0.1
    done
    for bridge in "${bridges[@]}"; do
        if ip link show "$bridge" >/dev/null 2>&1; then
            ip link delete "$bridge"
        fi
    done
    rm -rf "$home/exec" "$home/dockerd.pid" "$socket"
}

case ${1:-} in
    start | stop) "$1" ;;
    *) fail "say start or stop" ;;
esac
