#!/usr/bin/env bash
# node-power.sh N off|on: simulates a power cut by ending the node's first process, with which all others end.
#
# The API server reports the node NotReady 12 s later; after `on`, containers that may restart do so within 18 s.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
case ${2:-} in
  off)
    pid=$(alive "n$1-init") || die "node $1 is not up"
    kill -KILL "$pid"
    wait_until 10 "the end of node $1" gone "n$1-init"
    rm -f "$PIDS/n$1"-{init,containerd,kubelet,proxy}
    log "node $1 is off" ;;
  on) exec "$HERE/up-node.sh" "$1" ;;
  *) die "node-power.sh N off|on" ;;
esac
