#!/usr/bin/env bash
# up.sh [NODES [SIMULATED]]: starts a control plane, NODES (default 1) real nodes with DNS, and SIMULATED (default 0)
# nodes of kwok.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
began=$(now)
nodes=${1:-1} simulated=${2:-0}
if ((nodes > 0)); then "$HERE/base-images.sh"; fi
"$HERE/up-control-plane.sh"
for n in $(seq "$nodes"); do "$HERE/up-node.sh" "$n"; done
if ((nodes > 0)); then "$HERE/up-dns.sh"; fi
if ((simulated > 0)); then "$HERE/up-kwok.sh" "$simulated"; fi
log "all of it is up ($(since "$began") s): export KUBECONFIG=$ADMIN PATH=$BIN:\$PATH"
