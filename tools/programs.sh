# Sluice's programs, for the scripts that pack them; sourced after common.sh, never run.
# shellcheck shell=bash
#
# shellcheck disable=SC2034 # used by the scripts that source this

# Each program, and everything else that is built, with its Bazel target.
declare -rA TARGETS=(
  [sluice-operator]=//operator:sluice-operator
  [sluice-coordinator]=//services/coordinator:sluice-coordinator
  [sluice-ps]=//services/ps:sluice-ps
  [sluice-ps-torch]=//services/execution/shard:sluice-ps-torch
  [sluice-worker]=//services/worker:sluice-worker
  [sluice]=//cli:sluice
  [libsluice-worker.so]=//services/worker/library:libsluice-worker.so
)

# The release: the file VERSION states it.
version() { cat VERSION; }

# Seconds since 1970 of the release's date in CHANGELOG.md: the time of every packed file, so that the same input gives
# the same bytes.
release_time() {
  local date
  date=$(sed -nE "s/^## $(version) \(([0-9-]{10})\)$/\1/p" CHANGELOG.md)
  [[ -n $date ]] || die "CHANGELOG.md has no heading '## $(version) (YYYY-MM-DD)'"
  date -u -d "$date" +%s
}

# build_programs DIRECTORY NAME...: builds programs and copies them into a directory.
build_programs() {
  local directory=$1 name bin target list
  shift
  say "building $*"
  list=$(mktemp)
  for name in "$@"; do printf '%s\n' "${TARGETS[$name]}"; done >"$list"
  quiet_bazel build --target_pattern_file="$list"
  rm "$list"
  bin=$(bazel info --ui_event_filters=-info bazel-bin 2>/dev/null)
  mkdir -p "$directory"
  for name in "$@"; do
    target=${TARGETS[$name]#//}
    cp -f "$bin/${target/://}" "$directory/$name"
  done
}
