#!/usr/bin/env bash
# Builds everything that a release publishes, from a committed tree.
#
#   tools/release.sh [--output DIRECTORY] [--programs DIRECTORY]
#   tools/release.sh --set-version VERSION
#
#   --output DIRECTORY     the output directory, which is replaced (default: dist, which git ignores)
#   --programs DIRECTORY   the directory of the programs (default: Bazel builds them)
#   --set-version VERSION  only write this version to VERSION and to the files that repeat it
#
# The output: the wheel and the source distribution for pip, the Debian packages, the images as OCI archives, the chart,
# which names the images by their digests, an SBOM of each (*.cdx.json), and SHA256SUMS. The same commit on a machine
# with the same packages gives the same bytes.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=tools/programs.sh
source "$(dirname "$0")/programs.sh"

output=dist
programs=

# The files that repeat the version; packages/version_test.py compares them.
set_version() {
  [[ $1 =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "a version is three numbers, such as 0.2.0, not '$1'"
  sed -i "s/^__version__ = .*/__version__ = '$1'/" python/sluice/__init__.py
  sed -i -E "s/^((app)?[vV]ersion): .*/\1: $1/" helm/sluice/Chart.yaml
  sed -i "s/$(version | sed 's/\./\\./g')/$1/" k8s/sluice.yaml
  printf '%s\n' "$1" >VERSION
  say "the version is $1; add its heading to CHANGELOG.md"
}

build_archives() {
  local image archives=()
  tools/build_images.sh --output "$work/images" --programs "$programs"
  for image in operator server worker worker-python; do
    mv "$work/images/sluice-$image.tar" "$release/sluice-$image-$(version).oci.tar"
    archives+=("${image#worker-}=$release/sluice-$image-$(version).oci.tar")
  done
  packages/chart.py "$release/sluice-chart-$(version).tgz" "${archives[@]}"
}

write_sboms() {
  images/torch_stand_ins.sh "$work/stand-ins"
  packages/sbom.py --version "$(version)" --stand-ins "$work/stand-ins" "$release"/*
}

main() {
  while (($#)); do
    case $1 in
      --output) output=$(realpath -m "${2:?--output needs a directory}") && shift ;;
      --programs) programs=$(realpath "${2:?--programs needs a directory}") && shift ;;
      --set-version)
        cd "$(repository_root)"
        set_version "${2:?--set-version needs a version}"
        return ;;
      -h | --help) usage && exit 0 ;;
      *) die "unknown argument '$1' (--help lists the arguments)" ;;
    esac
    shift
  done
  cd "$(repository_root)"
  require_git
  [[ -z $(git status --porcelain) ]] || die "a release is made from a commit, and the tree has other changes"
  [[ ! -e $output || -f $output/SHA256SUMS || -z $(ls -A "$output") ]] || die "$output is not a release's directory"
  release_time >/dev/null
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  release=$work/release
  mkdir -p "$release"

  if [[ -z $programs ]]; then
    build_programs "$work/programs" "${!TARGETS[@]}"
    programs=$work/programs
  fi
  tools/build_wheel.sh --output "$release" --programs "$programs"
  PYTHONPATH=packages /usr/bin/python3 -c "import build_backend; build_backend.build_sdist('$release')"
  tools/build_debian_packages.sh --output "$release" --programs "$programs"
  build_archives
  write_sboms
  (cd "$release" && sha256sum -- * >SHA256SUMS)

  rm -rf "$output"
  mkdir -p "$(dirname "$output")"
  mv "$release" "$output"
  say "in $output:"
  (cd "$output" && stat -c '%10s  %n' -- *)
}

main "$@"
