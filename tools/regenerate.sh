#!/usr/bin/env bash
# Writes every file of the repository that is generated from other files:
#
#   helm/sluice/files/trainingjobs.sluice.dev.yaml   the custom resource, from the table of the manifest's fields
#   docs/manifest.md                                 the reference of the manifest, from the same table
#   k8s/sluice.yaml                                  the plain manifests, from the chart
#
#   tools/regenerate.sh [--check]
#
#   --check   write nothing; print the files that are out of date, and exit with 1 if there is one
#
# k8s/sluice.yaml needs Helm: HELM names it; otherwise the one in PATH, or the one that tests/cluster/build.sh keeps.
# Without Helm, the file is left as it is, with a message.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"

# A file, and the target that prints it.
readonly PRINTED=(
  helm/sluice/files/trainingjobs.sluice.dev.yaml //operator/crd:print_crd
  docs/manifest.md //docs:testing/print_manifest_reference
)

check=false
outdated=0

# Replaces a file by the output of a command, if they differ.
generate() { # FILE COMMAND...
  local file=$1 new=$work/new
  shift
  "$@" >"$new" || die "$file cannot be generated: '$*' failed"
  ! cmp -s "$new" "$file" || return 0
  outdated=$((outdated + 1))
  if $check; then
    echo "$file is out of date; tools/regenerate.sh writes it"
  else
    cp "$new" "$file"
    echo "$file is written again"
  fi
}

find_helm() {
  local kept=${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/cluster}/bin/helm
  HELM=${HELM:-$(command -v helm || true)}
  if [[ -z $HELM && -x $kept ]]; then HELM=$kept; fi
  export HELM
  [[ -n $HELM ]]
}

main() {
  local i targets=() bin
  case ${1:-} in
    --check) check=true ;;
    -h | --help) usage && exit 0 ;;
    '') ;;
    *) die "unknown argument '$1' (--help lists the arguments)" ;;
  esac
  cd "$(repository_root)"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT

  for ((i = 1; i < ${#PRINTED[@]}; i += 2)); do targets+=("${PRINTED[i]}"); done
  quiet_bazel build "${targets[@]}" >&2
  bin=$(bazel info --ui_event_filters=-info bazel-bin 2>/dev/null)
  for ((i = 0; i < ${#PRINTED[@]}; i += 2)); do
    local target=${PRINTED[i + 1]#//}
    generate "${PRINTED[i]}" "$bin/${target/://}"
  done

  # After the custom resource, which the chart contains.
  if find_helm; then
    generate k8s/sluice.yaml k8s/render.sh
  else
    echo "k8s/sluice.yaml is not compared: there is no Helm (tests/cluster/build.sh helm builds one)"
  fi
  ! $check || ((outdated == 0))
}

main "$@"
