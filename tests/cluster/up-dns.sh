#!/usr/bin/env bash
# Starts CoreDNS as the cluster's name server, on node 1: tests that lose a node lose a different one.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
began=$(now)
kubectl label --overwrite node "$NAME-n1" sluice.dev/name-server=here >/dev/null
kubectl apply -f "$HERE/manifests/coredns.yaml" >/dev/null
kubectl -n kube-system rollout status deploy/coredns --timeout=120s >/dev/null
log "CoreDNS is ready ($(since "$began") s)"
