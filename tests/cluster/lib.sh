# Settings and helpers of the scripts in this directory; sourced, never run.
# shellcheck shell=bash
#
# A cluster has its own network namespaces, cgroups and directory, all named after CLUSTER_NAME, so that several can run
# side by side. Each started process is recorded with its start time, and only recorded processes are ever ended.
#
# shellcheck disable=SC2034 # used by the scripts that source this
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# Programs and images built once per machine, kept between runs and outside the repository.
CACHE=${CLUSTER_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/sluice/cluster}
BIN=$CACHE/bin
IMAGES=$CACHE/images # images of every cluster; a cluster's own are in $RUN/images

NAME=${CLUSTER_NAME:-sluice}
RUN=${CLUSTER_DIR:-${TMPDIR:-/tmp}/sluice-cluster-$NAME} # all state of this cluster
PKI=$RUN/pki
LOG=$RUN/log
PIDS=$RUN/pid
API_PORT=${CLUSTER_API_PORT:-16443} # the API server on 127.0.0.1 of the caller's network namespace
ADMIN=$RUN/admin.kubeconfig         # for use there
ADMIN_INSIDE=$RUN/admin-inside.kubeconfig

FABRIC=10.88.0 # /24 that joins the namespaces; node N is .(10+N)
CP_IP=$FABRIC.1
CP_NS=$NAME-cp
SERVICES=10.96.0.0/16
SERVICE_API=10.96.0.1
SERVICE_DNS=10.96.0.10
PODS=10.244 # node N has 10.244.N.0/24
MAX_NODES=6

log() { printf '%s %s\n' "$(date +%H:%M:%S.%3N)" "$*"; }
die() {
  log "ERROR: $*" >&2
  exit 1
}

make_run_directory() { mkdir -p "$RUN" "$PKI" "$LOG" "$PIDS" "$RUN/images"; }

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

# Fields of /proc/PID/stat, counted after the process name, which may contain any character.
stat_field() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f"$2"; }
start_time() { stat_field "$1" 20; }

record() { printf '%s %s\n' "$2" "$(start_time "$2")" >"$PIDS/$1"; } # NAME PID

# Prints the process id if the process recorded under NAME still runs.
alive() {
  local pid began
  [[ -s $PIDS/$1 ]] || return 1
  read -r pid began <"$PIDS/$1"
  [[ -n $began && $(start_time "$pid") == "$began" && $(stat_field "$pid" 1) != Z ]] && echo "$pid"
}

# NAME COMMAND...: starts the command in its own session, with a log and a record.
start() {
  local name=$1
  shift
  setsid "$@" >>"$LOG/$name.log" 2>&1 </dev/null &
  record "$name" $!
}

# NAME PID COMMAND...: starts the command inside the namespaces of the node whose first process is
# PID, and records it.
start_inside() {
  local name=$1 init=$2 outer child=
  shift 2
  setsid nsenter -t "$init" -m -u -i -n -p -- "$@" >>"$LOG/$name.log" 2>&1 </dev/null &
  outer=$!
  for _ in $(seq 100); do
    child=$(tr -d ' ' 2>/dev/null <"/proc/$outer/task/$outer/children") && [[ -n $child ]] && break
    sleep 0.02
  done
  [[ -n $child ]] || die "$name did not start, see $LOG/$name.log"
  record "$name" "$child"
}

# NAME [SECONDS]: sends SIGTERM, and SIGKILL if the process still runs after that time.
stop() {
  local pid
  if pid=$(alive "$1"); then
    kill -TERM "$pid" 2>/dev/null || true
    for _ in $(seq $((${2:-10} * 20))); do
      alive "$1" >/dev/null || break
      sleep 0.05
    done
    if pid=$(alive "$1"); then
      log "$1 ($pid) is still there after ${2:-10} s: SIGKILL"
      kill -KILL "$pid" 2>/dev/null || true
      wait_until 10 "the end of $1" gone "$1"
    fi
  fi
  rm -f "$PIDS/$1"
}
gone() { ! alive "$1"; }

# SECONDS WHAT COMMAND...: waits until the command succeeds.
wait_until() {
  local limit=$1 what=$2 began=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS - began <= limit)) || die "after $limit s still not: $what (logs in $LOG)"
    sleep 0.1
  done
}

kubectl() { "$BIN/kubectl" --kubeconfig "$ADMIN" "$@"; }
in_control_plane() { nsenter --net="/run/netns/$CP_NS" -- "$@"; }

# Every cgroup v1 hierarchy of this machine.
cgroup_hierarchies() {
  local directory
  for directory in /sys/fs/cgroup/*/; do
    [[ $(basename "$directory") == unified || ! -f ${directory}cgroup.procs ]] || printf '%s\n' "$directory"
  done
}
