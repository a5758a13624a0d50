#!/usr/bin/env bash
# Checks what the compiler does not: formatting, scripts, lint.
#
#   tools/verify.sh [--fix] [--base REV] [CHECK...]
#
# Without a CHECK, runs all of them in this order:
#   format         C++ and .proto files are as clang-format writes them
#   shell          shellcheck finds nothing in the scripts
#   build-files    BUILD and .bzl files are as buildifier writes them
#   dependencies   packages depend on each other as docs/architecture.md says
#   generated      what tools/regenerate.sh writes is up to date
#   size           no tracked file is over 1 MiB
#   tidy           clang-tidy finds nothing in the C++ files changed since REV
#
#   --fix          format files instead of reporting them
#   --base REV     the revision with which `tidy` compares; by default where this branch left origin's main branch,
#                  or the commit before this one
#
# A check that cannot run here is skipped, with the reason. With CI=true it fails instead if the
# missing program is one that tools/install_dependencies.sh installs; checks that are impossible (no
# commit to compare with, no network) are still skipped.
#
# `tidy` starts no further file after TIDY_SECONDS (default 200) and prints how many files it left
# out. The last line is "verify: N ok, N failed, N skipped".
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"

# buildifier has no Debian package; it is a Go program, pinned here and built once per machine.
readonly BUILDIFIER_VERSION=v0.0.0-20240918101019-be1c24cc9a44
readonly CHECKS=(format shell build-files dependencies generated size tidy)
readonly MAX_BYTES=$((1024 * 1024))

fix=false
base=
skip_reason=
clang_flags=()

# A check returns 0 for success, 1 for failure or, with skip_reason set, one of these if it cannot
# run: a program is missing that can be installed; or the check is impossible here.
readonly LACKS=76 SKIPPED=77
lacks() {
  skip_reason=$*
  return $LACKS
}
skip() {
  skip_reason=$*
  return $SKIPPED
}

# Files of the repository, including files not added yet, whose paths match one of the patterns.
files() { git ls-files --cached --others --exclude-standard --deduplicate -- "$@" | existing; }

existing() {
  local path
  while IFS= read -r path; do if [[ -f $path ]]; then printf '%s\n' "$path"; fi; done
}

check_format() {
  local sources
  mapfile -t sources < <(files '*.cc' '*.h' '*.proto')
  ((${#sources[@]})) || return 0
  if $fix; then
    clang-format-14 -i "${sources[@]}"
    return
  fi
  printf '%s\0' "${sources[@]}" |
    xargs -0 -n 32 -P "$(nproc)" clang-format-14 --dry-run -Werror 2>&1 |
    sed -n -E 's/^([^:]+):[0-9]+:.* error: .*/  \1 is not formatted/p' | sort -u
}

scripts() {
  local path
  files '*.sh' '*.bash'
  # And files without such a name whose first line marks them as scripts.
  files | grep -v '\.[a-z]*$' | while IFS= read -r path; do
    if head -c 64 "$path" | head -n 1 | tr -d '\0' | grep -qE '^#!.*\b(ba|da)?sh\b'; then
      printf '%s\n' "$path"
    fi
  done
}

check_shell() {
  local list
  mapfile -t list < <(scripts | sort -u)
  ((${#list[@]})) || return 0
  shellcheck -x "${list[@]}"
}

find_buildifier() {
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/buildifier-$BUILDIFIER_VERSION
  if [[ ! -x $cache/buildifier ]]; then
    local go
    go=$(command -v go || ls /usr/local/go/bin/go 2>/dev/null) ||
      { lacks "there is no Go on this machine to build buildifier with" || return; }
    # Build under a temporary name and move: an interrupted build leaves no incomplete program.
    local log
    mkdir -p "$cache.new"
    log=$(GOBIN=$cache.new "$go" install \
      "github.com/bazelbuild/buildtools/buildifier@$BUILDIFIER_VERSION" 2>&1) ||
      { skip "buildifier could not be built: $(tail -n 1 <<<"$log")" || return; }
    mkdir -p "$cache"
    mv "$cache.new/buildifier" "$cache/buildifier"
  fi
  buildifier=$cache/buildifier
}

check_build_files() {
  local buildifier list
  find_buildifier || return
  mapfile -t list < <(files 'BUILD' '*/BUILD' '*.bzl' 'WORKSPACE' '*/WORKSPACE')
  if $fix; then
    "$buildifier" -mode=fix "${list[@]}"
  else
    "$buildifier" -mode=check "${list[@]}"
  fi
}

check_dependencies() { python3 tools/dependencies.py; }

check_generated() {
  if $fix; then tools/regenerate.sh; else tools/regenerate.sh --check; fi
}

check_size() {
  local large
  large=$(git ls-files -z | xargs -0 -r stat --format='%s %n' 2>/dev/null |
    awk -v max=$MAX_BYTES '$1 > max { printf "  %s: %d KiB\n", substr($0, index($0, " ") + 1), $1 / 1024 }')
  [[ -z $large ]] || {
    printf 'over 1 MiB; files of that size do not belong in the repository:\n%s\n' "$large"
    return 1
  }
}

# Makes the generated headers, and sets clang_flags, with which clang reads any source of the repository.
find_clang_flags() {
  ((${#clang_flags[@]} == 0)) || return 0
  local generators bin
  mapfile -t generators < <(bazel_query 'kind("_proto_gen rule", //...)')
  if ((${#generators[@]})); then quiet_bazel build "${generators[@]}" || return 1; fi
  bin=$(bazel info --ui_event_filters=-info bazel-bin 2>/dev/null)
  clang_flags=(-x c++ -std=c++17 -DNDEBUG -iquote . -Iinclude -iquote "$bin" -isystem /usr/include/torch/csrc/api/include)
}

# The translation units of the changed files: a header is checked through a source beside it.
changed_units() {
  local path stem
  {
    git diff --name-only --diff-filter=d "$1" -- '*.cc' '*.h'
    git ls-files --others --exclude-standard -- '*.cc' '*.h'
  } | while IFS= read -r path; do
    stem=${path%.*}
    if [[ $path == *.cc ]]; then
      printf '%s\n' "$path"
    elif [[ -f $stem.cc ]]; then
      printf '%s.cc\n' "$stem"
    elif [[ -f ${stem}_test.cc ]]; then
      printf '%s_test.cc\n' "$stem"
    fi
  done | sort -u | existing
}

check_tidy() {
  command -v clang-tidy-14 >/dev/null || { lacks "there is no clang-tidy-14" || return; }
  local since=$base units deadline left_out
  [[ -n $since ]] || since=$(default_base) ||
    { skip "there is no earlier commit to compare with; --base names one" || return; }
  mapfile -t units < <(changed_units "$since")
  if ((${#units[@]} == 0)); then
    echo "no C++ file has changed since $(git rev-parse --short "$since")"
    return 0
  fi

  find_clang_flags || return 1
  local status=0
  deadline=$(($(date +%s) + ${TIDY_SECONDS:-200}))
  left_out=$(mktemp)
  echo "${#units[@]} files have changed since $(git rev-parse --short "$since")"
  # shellcheck disable=SC2016 # expanded by the inner shell
  printf '%s\0' "${units[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c '
    unit=${!#}
    if (($(date +%s) > $1)); then
      echo "$unit" >>"$2"
      exit 0
    fi
    # Prints findings only, not the counts of suppressed findings in system headers.
    clang-tidy-14 --quiet "$unit" -- "${@:3:$#-3}" 2>&1 |
      grep -vE "^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter"
    exit $((PIPESTATUS[0] ? 1 : 0))
  ' tidy "$deadline" "$left_out" "${clang_flags[@]}" || status=1
  if [[ -s $left_out ]]; then
    echo "out of time: $(wc -l <"$left_out") of ${#units[@]} files were not checked"
  fi
  return $status
}

main() {
  local wanted=() check status ok=0 failed=0 skipped=0 began
  while (($#)); do
    case $1 in
      --fix) fix=true ;;
      --base) base=${2:?--base needs a revision} && shift ;;
      -h | --help) usage && exit 0 ;;
      -*) die "unknown flag '$1' (--help lists the arguments)" ;;
      *) [[ " ${CHECKS[*]} " == *" $1 "* ]] || die "no check '$1'; there are: ${CHECKS[*]}"
        wanted+=("$1") ;;
    esac
    shift
  done
  ((${#wanted[@]})) || wanted=("${CHECKS[@]}")
  cd "$(repository_root)"
  require_git
  [[ -z $base ]] || git rev-parse -q --verify "$base^{commit}" >/dev/null || die "no revision '$base'"

  for check in "${wanted[@]}"; do
    began=$SECONDS status=0 skip_reason=
    "check_${check//-/_}" || status=$?
    case $status in
      0) ok=$((ok + 1)) && say "$check: ok ($((SECONDS - began)) s)" ;;
      "$LACKS")
        if [[ ${CI:-} == true ]]; then
          failed=$((failed + 1)) && say "$check: FAILED: $skip_reason (tools/install_dependencies.sh installs it)"
        else
          skipped=$((skipped + 1)) && say "$check: skipped: $skip_reason"
        fi
        ;;
      "$SKIPPED") skipped=$((skipped + 1)) && say "$check: skipped: $skip_reason" ;;
      *) failed=$((failed + 1)) && say "$check: FAILED ($((SECONDS - began)) s)" ;;
    esac
  done
  if ((failed)) && ! $fix; then say "tools/verify.sh --fix fixes formatting; fix the other findings by hand"; fi
  echo "verify: $ok ok, $failed failed, $skipped skipped"
  ((failed == 0))
}

main "$@"
