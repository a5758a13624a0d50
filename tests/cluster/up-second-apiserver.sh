#!/usr/bin/env bash
# Starts a second API server on the same etcd, at the next port of 127.0.0.1, for stale reads and for fail-over. Its
# kubeconfig is admin2.kubeconfig; down.sh process forward2 apiserver2 ends it.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
began=$(now)
pid=$(alive apiserver) || die "the first API server is not up"
if ! alive apiserver2 >/dev/null; then
  mapfile -d '' -t arguments < <(tail -z -n +2 "/proc/$pid/cmdline")
  start apiserver2 nsenter --net="/run/netns/$CP_NS" -- "$BIN/kube-apiserver" "${arguments[@]}" --secure-port=6444 \
    --endpoint-reconciler-type=none --audit-log-path="$LOG/audit2.log"
fi
port=$((API_PORT + 1))
alive forward2 >/dev/null || start forward2 python3 "$HERE/forward.py" "$CP_NS" "$port=$CP_IP:6444"
sed "s/:$API_PORT\"/:$port\"/" "$ADMIN" >"$RUN/admin2.kubeconfig"
wait_until 60 "the second API server is ready" "$BIN/kubectl" --kubeconfig "$RUN/admin2.kubeconfig" get --raw /readyz
log "the second API server is ready ($(since "$began") s): $RUN/admin2.kubeconfig"
