#!/usr/bin/env bash
# node-link.sh N down|up: cuts node N off from the other nodes and the API server, or reconnects it; its processes
# continue.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
[[ ${2:-} == up || ${2:-} == down ]] || die "node-link.sh N down|up"
ip -n "$CP_NS" link set "n$1" "$2"
log "the link of node $1 is $2"
