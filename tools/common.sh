# Shared by the scripts in this directory; sourced, never run.
# shellcheck shell=bash

# Not every CI runner sets it, and compilers keep their caches there.
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}

# Prints a message with the script's elapsed time.
say() { printf '[%3dm%02ds] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# The root of the script's repository.
repository_root() { (cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P); }

# Lets git read a checkout that belongs to another user (a mounted volume, a CI runner's checkout),
# and exits if there is none: an empty list of files would look like success.
require_git() {
  export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=$PWD
  git ls-files --error-unmatch -- README.md >/dev/null || die "$PWD is not a git checkout of Sluice"
}

# Prints the leading comment of the calling script, which is its help text.
usage() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0"; }

# Prints the directory of compiled files that all clones of a user on this machine share. Another set of installed
# packages has another one, because Bazel does not see changes of the compiler and the system's libraries. What was not
# used for 30 days is removed.
build_cache() {
  local directory=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/build packages
  packages=$({ dpkg-query -W 2>/dev/null; uname -m; } | sha256sum | cut -c 1-16)
  mkdir -p "$directory/$packages" 2>/dev/null || return 0 # without a cache
  find "$directory" -type f -mtime +30 -atime +30 -delete 2>/dev/null || true
  echo "$directory/$packages"
}

# Runs `bazel build` or `bazel test` with plain output: a line about twice a minute, and errors. The status is Bazel's
# (the scripts set pipefail).
quiet_bazel() {
  local command=$1
  shift
  set -- --disk_cache="$(build_cache)" "$@"
  # sed and cat, not awk: Debian's awk buffers whole blocks.
  bazel "$command" --curses=no --show_progress_rate_limit=30 --noshow_loading_progress "$@" 2>&1 |
    sed -u -E '
      /^(Loading|Analyzing|DEBUG):/d
      /BazelWorkspaceStatusAction/d
      /^INFO: (Invocation|Elapsed|Found|Analyzed|[0-9]+ process|Build |From (Compiling|Linking))/d' |
    cat -s
}

# Removes Bazel's links of another user's or another HOME's build, which `//...` would follow.
remove_foreign_links() {
  local link output_base
  output_base=$(bazel info --ui_event_filters=-info output_base 2>/dev/null)
  for link in bazel-*; do
    if [[ -L $link && $(readlink "$link") != "$output_base"/* ]]; then rm "$link"; fi
  done
}

# Runs a Bazel query without progress output. The expression may span lines.
bazel_query() { bazel query --noshow_progress --ui_event_filters=-info "$@"; }

# The revision with which changed files are compared: where this branch left origin's main branch, or else the commit
# before this one. Fails if there is none.
default_base() {
  local main
  for main in origin/HEAD origin/main; do
    if git rev-parse -q --verify "$main^{commit}" >/dev/null &&
      [[ $(git rev-parse "$main^{commit}") != $(git rev-parse HEAD) ]]; then
      git merge-base "$main" HEAD && return
    fi
  done
  git rev-parse -q --verify HEAD~1
}

# Prints the targets of a query expression. Libraries are built as dependencies. As targets they would
# also be linked as shared libraries.
targets_to_build() {
  local query=$1
  query="kind(\"rule\", $query) except (kind(\"cc_library rule\", //...) intersect deps(kind(\"_(binary|test) rule\", //...)))"
  bazel_query --keep_going "($query) except attr(tags, \"[\\[ ]manual[,\\]]\", //...)" 2>/dev/null || true
}
