#!/usr/bin/env bash
# up-kwok.sh [COUNT]: starts kwok and COUNT (default 20) simulated nodes fake-000, fake-001, …
#
# Their pods start at once; annotations of a pod make it fail, see manifests/kwok-stages.yaml. `kubectl label node
# fake-000 kwok-` makes a node fail. More flags: KWOK_FLAGS.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
began=$(now)
count=${1:-20}

if ! alive kwok >/dev/null; then
  # A new kwok does not serve a node until the lease of the previous kwok has expired (20 s), so
  # delete the leases.
  kubectl -n kube-node-lease get lease -o name | sed -n '/\/fake-/p' |
    xargs -r "$BIN/kubectl" --kubeconfig "$ADMIN" -n kube-node-lease delete >/dev/null
  read -ra more <<<"${KWOK_FLAGS:-}"
  start kwok nsenter --net="/run/netns/$CP_NS" -- "$BIN/kwok" --kubeconfig="$ADMIN_INSIDE" \
    --config="$HERE/manifests/kwok-stages.yaml" --manage-all-nodes=false \
    --manage-nodes-with-label-selector=kwok=up --node-lease-duration-seconds=20 \
    --cidr=10.245.0.0/16 --node-ip="$CP_IP" "${more[@]}"
fi

for ((i = 0; i < count; i++)); do
  name=fake-$(printf %03d $i)
  cat <<END
---
apiVersion: v1
kind: Node
metadata:
  name: $name
  annotations: {node.alpha.kubernetes.io/ttl: "0"}
  labels:
    type: kwok
    kwok: up
    kubernetes.io/hostname: $name
    kubernetes.io/os: linux
    kubernetes.io/arch: amd64
    topology.kubernetes.io/zone: z$((i % 3))
spec: {taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]}
END
done | kubectl apply -f - >/dev/null
kubectl wait node -l type=kwok --for=condition=Ready --timeout=60s >/dev/null
log "$count simulated nodes are ready ($(since "$began") s)"
