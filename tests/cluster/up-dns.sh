#!/usr/bin/env bash
# CoreDNS as the cluster's name server, on a real node.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
began=$(now)
kubectl apply -f "$HERE/manifests/coredns.yaml" >/dev/null
kubectl -n kube-system rollout status deploy/coredns --timeout=120s >/dev/null
log "CoreDNS is ready ($(since "$began") s)"
