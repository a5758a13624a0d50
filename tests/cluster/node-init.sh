#!/usr/bin/env bash
# The first process of a node, in mount, host name, IPC, process and network namespaces of its own: gives the node its own
# copies of the directories that containerd, CNI and the kubelet use. Started by up-node.sh.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
directory=$RUN/n$1
hostname "$NAME-n$1"

own() {
  mkdir -p "$directory/$1" "$2"
  mount --bind "$directory/$1" "$2"
}
own containerd /var/lib/containerd
own run-containerd /run/containerd
own etc-containerd /etc/containerd
own kubelet /var/lib/kubelet
own cni /var/lib/cni
own etc-cni /etc/cni
own log-pods /var/log/pods
own log-containers /var/log/containers
own run-netns /run/netns

# The kubelet requires these values, and would set them for the whole machine, so present them to
# it.
mkdir -p "$directory/sysctl"
pretend() {
  echo "$2" >"$directory/sysctl/${1//\//_}"
  mount --bind "$directory/sysctl/${1//\//_}" "/proc/sys/$1"
}
pretend vm/overcommit_memory 1
pretend kernel/panic 10
pretend kernel/panic_on_oops 1

mount --make-rshared /
touch "$directory/init-ready"
exec catatonit -P
