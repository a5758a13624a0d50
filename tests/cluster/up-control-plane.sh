#!/usr/bin/env bash
# Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler in a network namespace, reachable from the
# caller's at 127.0.0.1:$CLUSTER_API_PORT. It keeps running processes, so it also restarts the ones that were ended.
#
# More flags for the programs: ETCD_FLAGS, APISERVER_FLAGS, CONTROLLER_MANAGER_FLAGS, SCHEDULER_FLAGS.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
began=$(now)
make_run_directory
"$HERE/pki.sh"

up_fabric() {
  [[ ! -e /run/netns/$CP_NS ]] || return 0
  ip netns add "$CP_NS"
  ip -n "$CP_NS" link set lo up
  ip -n "$CP_NS" link add fabric type bridge
  ip -n "$CP_NS" addr add "$CP_IP/24" dev fabric
  ip -n "$CP_NS" link set fabric up
  in_control_plane sysctl -qw net.ipv4.ip_forward=1
}

up_etcd() {
  local more
  read -ra more <<<"${ETCD_FLAGS:-}"
  alive etcd >/dev/null || start etcd nsenter --net="/run/netns/$CP_NS" -- "$BIN/etcd" --data-dir="$RUN/etcd" \
    --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380 --unsafe-no-fsync --quota-backend-bytes=2147483648 \
    --auto-compaction-mode=periodic --auto-compaction-retention=10m --log-level=warn "${more[@]}"
  wait_until 30 "etcd is healthy" etcd_healthy
}
etcd_healthy() { in_control_plane curl -sf --max-time 2 http://127.0.0.1:2379/health | grep -c true; }

up_apiserver() {
  local more
  read -ra more <<<"${APISERVER_FLAGS:-}"
  alive apiserver >/dev/null || start apiserver nsenter --net="/run/netns/$CP_NS" -- "$BIN/kube-apiserver" \
    --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port=6443 --advertise-address="$CP_IP" \
    --service-cluster-ip-range="$SERVICES" --client-ca-file="$PKI/ca.crt" \
    --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
    --kubelet-client-certificate="$PKI/apiserver-kubelet.crt" --kubelet-client-key="$PKI/apiserver-kubelet.key" \
    --kubelet-preferred-address-types=InternalIP,Hostname \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
    --requestheader-client-ca-file="$PKI/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$PKI/front-proxy.crt" --proxy-client-key-file="$PKI/front-proxy.key" \
    --enable-aggregator-routing=true --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --allow-privileged=true --profiling=false --event-ttl=30m \
    --audit-policy-file="$HERE/manifests/audit-policy.yaml" --audit-log-path="$LOG/audit.log" "${more[@]}"
  wait_until 120 "the API server is ready" apiserver_ready
}
apiserver_ready() {
  in_control_plane curl -sf --max-time 2 --cacert "$PKI/ca.crt" --cert "$PKI/admin.crt" --key "$PKI/admin.key" \
    "https://$CP_IP:6443/readyz" | grep -c ok
}

up_controllers() {
  local more
  read -ra more <<<"${CONTROLLER_MANAGER_FLAGS:-}"
  # A lost node is noticed after 12 s and its pods are evicted at once; a second node would wait 10
  # s by default.
  alive controller-manager >/dev/null || start controller-manager nsenter --net="/run/netns/$CP_NS" -- \
    "$BIN/kube-controller-manager" --kubeconfig="$RUN/controller-manager.kubeconfig" \
    --authentication-kubeconfig="$RUN/controller-manager.kubeconfig" \
    --authorization-kubeconfig="$RUN/controller-manager.kubeconfig" --root-ca-file="$PKI/ca.crt" \
    --service-account-private-key-file="$PKI/sa.key" --cluster-signing-cert-file="$PKI/ca.crt" \
    --cluster-signing-key-file="$PKI/ca.key" --use-service-account-credentials=true --allocate-node-cidrs=false \
    --service-cluster-ip-range="$SERVICES" --leader-elect=false --bind-address=127.0.0.1 --profiling=false \
    --node-monitor-period=1s --node-monitor-grace-period=12s --node-eviction-rate=10 \
    --secondary-node-eviction-rate=10 --large-cluster-size-threshold=1 --kube-api-qps=300 --kube-api-burst=500 \
    "${more[@]}"
  read -ra more <<<"${SCHEDULER_FLAGS:-}"
  alive scheduler >/dev/null || start scheduler nsenter --net="/run/netns/$CP_NS" -- "$BIN/kube-scheduler" \
    --kubeconfig="$RUN/scheduler.kubeconfig" --authentication-kubeconfig="$RUN/scheduler.kubeconfig" \
    --authorization-kubeconfig="$RUN/scheduler.kubeconfig" --leader-elect=false --bind-address=127.0.0.1 \
    --profiling=false --kube-api-qps=300 --kube-api-burst=500 "${more[@]}"
}

up_fabric
up_etcd
log "etcd is healthy ($(since "$began") s)"
up_apiserver
log "the API server is ready ($(since "$began") s)"
up_controllers
alive forward >/dev/null || start forward python3 "$HERE/forward.py" "$CP_NS" "$API_PORT=$CP_IP:6443"
wait_until 60 "the default service account exists" kubectl get serviceaccount default -n default
log "the control plane is up ($(since "$began") s): export KUBECONFIG=$ADMIN"
