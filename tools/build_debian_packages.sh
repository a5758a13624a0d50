#!/usr/bin/env bash
# Builds the Debian packages sluice, sluice-worker and sluice-operator.
#
#   tools/build_debian_packages.sh [--output DIRECTORY] [--programs DIRECTORY]
#
#   --output DIRECTORY    the output directory (default: dist, which git ignores)
#   --programs DIRECTORY  the directory of the programs (default: Bazel builds them)
#
# Man pages and completions are made from the programs themselves. It needs debhelper, no root and no network.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=tools/programs.sh
source "$(dirname "$0")/programs.sh"

declare -rA PROGRAMS=(
  [sluice]="sluice sluice-coordinator sluice-ps"
  [sluice-worker]="sluice-worker sluice-ps-torch"
  [sluice-operator]=sluice-operator
)

output=dist
programs=

# Prints the release's section of CHANGELOG.md in Debian's form.
write_changelog() {
  printf 'sluice (%s) bookworm; urgency=medium\n\n' "$(version)"
  sed -n "/^## $(version) /,/^## /p" CHANGELOG.md | sed -n 's/^- /  * /p; t; s/^  /    /p' | fmt -t -w 78
  printf '\n -- %s  %s\n' "$(sed -n 's/^Maintainer: //p' packages/debian/control)" "$(date -u -R -d "@$(release_time)")"
}

# Lays out the tree from which debhelper builds: $work/sluice.
lay_out() {
  local tree=$work/sluice package program
  mkdir -p "$tree"/{programs,completions,examples}
  cp -rL packages/debian "$tree/debian"
  write_changelog >"$tree/debian/changelog"
  for package in "${!PROGRAMS[@]}"; do
    mkdir -p "$tree/man/$package"
    for program in ${PROGRAMS[$package]}; do
      [[ -x $programs/$program ]] || die "there is no program $programs/$program"
      cp "$programs/$program" "$tree/programs/"
      packages/man_page.py "$programs/$program" "$tree/man/$package"
    done
  done

  "$programs/sluice" completion bash >"$tree/completions/sluice"
  "$programs/sluice" completion zsh >"$tree/completions/_sluice"
  "$programs/sluice" completion fish >"$tree/completions/sluice.fish"
  # The examples that need only what packages contain.
  grep -LE 'bazel-bin|plugin' examples/*.yaml | xargs cp -t "$tree/examples"
  mkdir "$tree/examples/python"
  cp examples/python/*.{py,yaml,ipynb} "$tree/examples/python/"
}

main() {
  local all
  while (($#)); do
    case $1 in
      --output) output=$(realpath -m "${2:?--output needs a directory}") && shift ;;
      --programs) programs=$(realpath "${2:?--programs needs a directory}") && shift ;;
      -h | --help) usage && exit 0 ;;
      *) die "unknown argument '$1' (--help lists the arguments)" ;;
    esac
    shift
  done
  command -v dh >/dev/null || die "there is no debhelper (tools/install_dependencies.sh installs it)"
  cd "$(repository_root)"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$output"

  if [[ -z $programs ]]; then
    read -ra all <<<"${PROGRAMS[*]}"
    build_programs "$work/programs" "${all[@]}"
    programs=$work/programs
  fi
  lay_out
  (cd "$work/sluice" && dpkg-buildpackage --build=binary --no-sign --no-check-builddeps) >"$work/log" 2>&1 ||
    die "dpkg-buildpackage failed: $(tail -n 20 "$work/log")"
  cp "$work"/*.deb "$output/"
  say "in $output: $(cd "$work" && echo *.deb)"
}

main "$@"
