#!/usr/bin/env bash
# Checks whether this machine can run a test cluster; if not, prints the reason in one line on standard error.
#
#   tests/cluster/available.sh [--nodes]
#
#   --nodes   check for real nodes, which run containers, too, not only for the API server and simulated nodes
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

unable() {
  echo "$*" >&2
  exit 1
}

need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || unable "there is no $program (tools/install_dependencies.sh installs it)"
  done
}

[[ $(uname -sm) == "Linux x86_64" ]] || unable "the test cluster is for Linux on x86-64, this is $(uname -sm)"
[[ $(id -u) == 0 ]] || unable "a test cluster needs root"
unshare --net --mount --pid --fork true 2>/dev/null || unable "cannot make network, mount and process namespaces"
need ip curl openssl
if ! "$HERE/build.sh" --check >/dev/null 2>&1; then
  command -v go >/dev/null || [[ -x /usr/local/go/bin/go || -x $CACHE/go/go/bin/go ]] ||
    python3 -m pip --version >/dev/null 2>&1 ||
    unable "there is neither Go nor pip (which brings Go) to build Kubernetes with"
fi

if [[ ${1:-} == --nodes ]]; then
  need containerd runc iptables conntrack socat catatonit busybox jq zstd gcc readelf
  [[ -x /usr/lib/cni/bridge ]] || unable "there are no CNI plugins (tools/install_dependencies.sh installs them)"
  [[ -n $(cgroup_hierarchies) ]] || unable "the nodes of the test cluster need cgroup v1 hierarchies"
  while IFS= read -r hierarchy; do
    [[ -w $hierarchy ]] || unable "cannot write to $hierarchy"
  done < <(cgroup_hierarchies)
fi
