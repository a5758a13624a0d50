#!/usr/bin/env bash
# up-node.sh N: starts containerd, kubelet and kube-proxy as node N, in its own namespaces and cgroups. It keeps running
# processes; after node-power.sh N off it switches the node on. KUBELET_FLAGS: more flags for the kubelet.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
number=${1:?up-node.sh needs a number}
((number >= 1 && number <= MAX_NODES)) || die "a cluster has nodes 1 to $MAX_NODES"
node=$NAME-n$number
directory=$RUN/n$number
address=$FABRIC.$((10 + number))
pods=$PODS.$number.0/24
ctr=(ctr -a "$directory/run-containerd/containerd.sock" -n k8s.io)
began=$(now)
[[ -e /run/netns/$CP_NS ]] || die "there is no control plane; run up-control-plane.sh first"
"$HERE/pki.sh" node "$number"

up_network() {
  [[ ! -e /run/netns/$node ]] || return 0
  ip netns add "$node"
  ip -n "$node" link set lo up
  ip -n "$node" link add eth0 type veth peer name "n$number" netns "$CP_NS"
  ip -n "$CP_NS" link set "n$number" master fabric up
  ip -n "$node" addr add "$address/24" dev eth0
  ip -n "$node" link set eth0 up
  ip -n "$node" route add default via "$CP_IP"
  local other
  for other in $(seq $MAX_NODES); do
    ((other == number)) || ip -n "$node" route add "$PODS.$other.0/24" via "$FABRIC.$((10 + other))"
  done
  ip -n "$CP_NS" route replace "$pods" via "$address"
  nsenter --net="/run/netns/$node" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1
}

up_cgroups() {
  local hierarchy
  while IFS= read -r hierarchy; do
    mkdir -p "$hierarchy$node"
    if [[ -f ${hierarchy}cpuset.cpus ]]; then
      cat "${hierarchy}cpuset.cpus" >"$hierarchy$node/cpuset.cpus"
      cat "${hierarchy}cpuset.mems" >"$hierarchy$node/cpuset.mems"
    fi
  done < <(cgroup_hierarchies)
}

up_init() {
  mkdir -p "$directory/etc-containerd" "$directory/etc-cni/net.d" "$directory/kubelet"
  alive "n$number-init" >/dev/null && return
  # Remove what a reboot would clear.
  rm -rf "$directory/init-ready" "$directory/run-containerd" "$directory/run-netns"
  CLUSTER_NAME=$NAME CLUSTER_DIR=$RUN setsid nsenter --net="/run/netns/$node" \
    unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc "$HERE/node-init.sh" "$number" \
    >>"$LOG/n$number-init.log" 2>&1 </dev/null &
  local outer=$!
  wait_until 10 "the first process of node $number runs" test -e "$directory/init-ready"
  record "n$number-init" "$(tr -d ' ' <"/proc/$outer/task/$outer/children")"
}

up_containerd() {
  # Without CAP_SYS_RESOURCE, which this machine may not have, OOM scores cannot be lowered.
  cat >"$directory/etc-containerd/config.toml" <<END
version = 2
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
END
  cat >"$directory/etc-cni/net.d/10-bridge.conflist" <<END
{"cniVersion": "1.0.0", "name": "$NAME", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}
END
  alive "n$number-containerd" >/dev/null ||
    start_inside "n$number-containerd" "$(alive "n$number-init")" containerd --config /etc/containerd/config.toml
  wait_until 30 "containerd of node $number answers" "${ctr[@]}" version
}

kubelet_config() {
  cat <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /$node
failSwapOn: false
failCgroupV1: false
oomScoreAdj: 0
maxOpenFiles: 20000
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
clusterDNS: [$SERVICE_DNS]
clusterDomain: cluster.local
resolvConf: /var/lib/kubelet/resolv.conf
readOnlyPort: 0
evictionHard: {memory.available: 100Mi, nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
enforceNodeAllocatable: [pods]
nodeStatusUpdateFrequency: 4s
nodeStatusReportFrequency: 1m
nodeLeaseDurationSeconds: 10
volumeStatsAggPeriod: 1m
END
}

up_kubelet() {
  local more
  read -ra more <<<"${KUBELET_FLAGS:-}"
  echo "# no upstream resolver" >"$directory/kubelet/resolv.conf"
  kubelet_config >"$directory/kubelet/config.yaml"
  alive "n$number-kubelet" >/dev/null || start_inside "n$number-kubelet" "$(alive "n$number-init")" "$BIN/kubelet" \
    --config=/var/lib/kubelet/config.yaml --kubeconfig="$RUN/$node.kubeconfig" --hostname-override="$node" \
    --node-ip="$address" --root-dir=/var/lib/kubelet --cert-dir=/var/lib/kubelet/pki "${more[@]}"
  wait_until 60 "node $node is registered" kubectl get node "$node"
  kubectl wait "node/$node" --for=condition=Ready --timeout=120s >/dev/null
}

up_proxy() {
  alive "n$number-proxy" >/dev/null && return
  # Written only here: kube-proxy exits when its file is rewritten.
  cat >"$directory/kube-proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $RUN/proxy.kubeconfig}
hostnameOverride: $node
mode: iptables
clusterCIDR: $PODS.0.0/16
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 200ms}
END
  start_inside "n$number-proxy" "$(alive "n$number-init")" "$BIN/kube-proxy" --config="$directory/kube-proxy.yaml"
}

up_network
up_cgroups
up_init
up_containerd
"$HERE/import-images.sh" "$number"
up_kubelet
up_proxy
log "node $node is ready ($(since "$began") s): ${ctr[*]}"
