#!/usr/bin/env bash
# The checks that a change passes before it is pushed; five minutes at most if the cache of compiled files is warm:
#
#   build      everything compiles and links
#   verify     formatting, the rules of dependency, generated files, as tools/verify.sh checks them
#   unit       the unit tests of the packages that have changed
#
#   tools/gate.sh [--base REV]
#
#   --base REV   the revision with which to compare; by default where this branch left origin's main branch, or the
#                commit before this one
#
# `git config core.hooksPath tools/hooks` makes git run it before each push, and refuse the push if it fails. Continuous
# integration runs it first. It checks the files that are there, committed or not. The exit status is 0 if nothing failed.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"

readonly CHECKS=(format build-files dependencies generated)

# The packages of the files that have changed since a revision.
changed_packages() { # REV
  local path
  {
    git diff --name-only --diff-filter=d "$1"
    git ls-files --others --exclude-standard
  } | while IFS= read -r path; do
    path=$(dirname "$path")
    while [[ $path != . && ! -f $path/BUILD ]]; do path=$(dirname "$path"); done
    if [[ $path != . ]]; then echo "//$path:*"; fi
  done | sort -u
}

run_unit_tests() { # REV
  local packages query
  packages=$(changed_packages "$1" | tr '\n' ' ')
  if [[ -z $packages ]]; then
    say "unit: no package has changed since $(git rev-parse --short "$1")"
    return 0
  fi
  query="tests(set($packages)) except filter(\"^//tests[/:]\", set($packages))"
  bazel_query "($query) except attr(tags, \"[\\[ ]manual[,\\]]\", set($packages))" >"$work/tests"
  say "unit: $(wc -l <"$work/tests") test targets in packages that have changed since $(git rev-parse --short "$1")"
  [[ ! -s $work/tests ]] ||
    quiet_bazel test --keep_going --test_summary=terse --test_output=errors --target_pattern_file="$work/tests"
}

main() {
  local base=
  while (($#)); do
    case $1 in
      --base) base=${2:?--base needs a revision} && shift ;;
      -h | --help) usage && exit 0 ;;
      *) die "unknown argument '$1' (--help lists the arguments)" ;;
    esac
    shift
  done
  cd "$(repository_root)"
  require_git
  [[ -z $base ]] || git rev-parse -q --verify "$base^{commit}" >/dev/null || die "no revision '$base'"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT

  say "build: everything"
  remove_foreign_links
  targets_to_build //... >"$work/targets"
  quiet_bazel build --target_pattern_file="$work/targets" || die "the build failed"

  say "verify: ${CHECKS[*]}"
  tools/verify.sh "${CHECKS[@]}" || die "a check failed"

  if [[ -n $base ]] || base=$(default_base); then
    run_unit_tests "$base" || die "a unit test failed"
  else
    say "unit: there is no earlier commit to compare with; no test runs"
  fi
  say "gate: passed"
}

main "$@"
