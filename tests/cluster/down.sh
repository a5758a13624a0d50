#!/usr/bin/env bash
# down.sh [all | nodes | node N | process NAME...]: ends only processes that the other scripts started.
#
# The state in the cluster's directory is kept, and a later up continues with it; PURGE=1 removes it.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

down_node() {
  local number=$1 node=$NAME-n$1 pid hierarchy name
  for name in proxy kubelet containerd; do stop "n$number-$name" 5; done
  # When its first process ends, every container and mount of the node ends too.
  if pid=$(alive "n$number-init"); then
    kill -KILL "$pid"
    wait_until 10 "the end of node $number" gone "n$number-init"
  fi
  rm -f "$PIDS/n$number-init"
  if [[ -e /run/netns/$node ]]; then
    ip -n "$node" link del eth0 2>/dev/null || true
    ip netns del "$node"
  fi
  for hierarchy in /sys/fs/cgroup/*/; do
    [[ -d $hierarchy$node ]] || continue
    # Their processes have been killed, which takes the kernel a moment.
    for _ in $(seq 25); do
      find "$hierarchy$node" -depth -type d -exec rmdir {} + 2>/dev/null && break
      sleep 0.2
    done
  done
}

down_nodes() {
  local directory
  for directory in "$RUN"/n[0-9]; do
    if [[ -d $directory ]]; then down_node "${directory##*/n}"; fi
  done
}

case ${1:-all} in
  node) down_node "${2:?down.sh node needs a number}" ;;
  nodes) down_nodes ;;
  process)
    shift
    for name in "$@"; do stop "$name" 10; done ;;
  all)
    down_nodes
    for name in kwok forward forward2 scheduler controller-manager; do stop "$name" 5; done
    # With watches open, an API server does not end by SIGTERM within 10 s.
    stop apiserver2 2
    stop apiserver 2
    stop etcd 5
    if [[ -e /run/netns/$CP_NS ]]; then ip netns del "$CP_NS"; fi
    if [[ -n ${PURGE:-} ]]; then rm -rf "$RUN"; fi
    log "the cluster $NAME is down" ;;
  *) die "down.sh [all | nodes | node N | process NAME...]" ;;
esac
