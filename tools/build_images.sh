#!/usr/bin/env bash
# Builds the container images without a registry, a daemon or a base image.
#
#   tools/build_images.sh [--output DIRECTORY] [--programs DIRECTORY] [--tag TAG] [--prefix NAME] [--torch DIRECTORY] [IMAGE...]
#
#   sluice-operator       the operator
#   sluice-server         coordinator, shards and the command line; no LibTorch
#   sluice-worker         all of these, and the worker
#   sluice-worker-python  the same, and Python with numpy, gRPC and the package sluice
#
# Without an IMAGE, builds all of them. Each becomes DIRECTORY/IMAGE.tar, an OCI layout (docs/images.md
# explains how to load and push it).
#
#   --output DIRECTORY    the output directory (default: images/out, which git ignores)
#   --programs DIRECTORY  the directory of the programs (default: Bazel builds them)
#   --tag TAG          default: the version
#   --prefix NAME      prefix of the image's name (default: localhost/)
#   --torch DIRECTORY     a directory with pip's torch, for sluice-worker-python (`pip install --target DIRECTORY torch`)
#   --rootfs           write the directory IMAGE/ with the image's files instead of an archive; images/Dockerfile copies it
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"
# shellcheck source=tools/programs.sh
source "$(dirname "$0")/programs.sh"

readonly ALL=(sluice-operator sluice-server sluice-worker sluice-worker-python)
readonly PYTHON_PACKAGE=/usr/lib/python3/dist-packages/sluice
readonly SERVER=(sluice-coordinator sluice-ps sluice)
# Python's packages and the dependencies of the package sluice.
readonly PYTHON_PACKAGES=(python3-minimal python3.11-minimal libpython3.11-minimal libpython3.11-stdlib
  python3-numpy python3-protobuf)
readonly CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

output=images/out
programs=
tag=
prefix=localhost/
torch=
rootfs=false

programs_of() {
  case $1 in
    sluice-operator) echo sluice-operator ;;
    sluice-server) printf '%s\n' "${SERVER[@]}" ;;
    sluice-worker) printf '%s\n' "${SERVER[@]}" sluice-ps-torch sluice-worker ;;
    sluice-worker-python) programs_of sluice-worker && echo libsluice-worker.so ;;
    *) die "no image '$1'; there are: ${ALL[*]}" ;;
  esac
}

entrypoint_of() {
  case $1 in
    sluice-operator) echo /usr/bin/sluice-operator ;;
    # The pod's command selects the role.
    *) echo /usr/bin/sluice ;;
  esac
}

# Builds the programs of the wanted images.
build_wanted() {
  local image wanted=()
  for image in "$@"; do
    mapfile -t -O "${#wanted[@]}" wanted < <(programs_of "$image")
  done
  mapfile -t wanted < <(printf '%s\n' "${wanted[@]}" | sort -u)
  build_programs "$work/programs" "${wanted[@]}"
  programs=$work/programs
}

# Copies the files of the Python packages into a tree under $1.
lay_out_python() {
  local root=$1
  dpkg -L "${PYTHON_PACKAGES[@]}" >/dev/null || die "these packages are missing (tools/install_dependencies.sh installs them)"
  dpkg -L "${PYTHON_PACKAGES[@]}" |
    grep -E '^/usr/(bin/python3|lib/python3|lib/x86_64-linux-gnu)' |
    grep -vE '/(tests?|testing/tests|idlelib|tkinter|ensurepip|lib2to3|pydoc_data|f2py|distutils/tests)/' |
    while IFS= read -r path; do
      if [[ -L $path || -f $path ]]; then printf '%s\n' "${path#/}"; fi
    done | tar -C / -cf - --files-from=- | tar -C "$root" -xf -
  # Files that the packages do not list, because their scripts create them.
  ln -sfn python3.11 "$root/usr/bin/python3"
  ln -sfn python3 "$root/usr/bin/python"
  mkdir -p "$root/usr/lib/python3/dist-packages"
  cp -r python/sluice "$root/usr/lib/python3/dist-packages/"
  protoc --proto_path=. --descriptor_set_out="$root$PYTHON_PACKAGE/wire.descriptors" proto/*.proto
  if [[ -n $torch ]]; then cp -r "$torch"/. "$root/usr/lib/python3/dist-packages/"; fi
  find "$root" -name __pycache__ -prune -exec rm -rf {} +
}

pack() {
  local image=$1 program arguments=() list place
  mapfile -t list < <(programs_of "$image")
  for program in "${list[@]}"; do
    [[ -x $programs/$program ]] || die "there is no program $programs/$program"
    place=/usr/bin
    if [[ $program == *.so ]]; then place=$PYTHON_PACKAGE; fi
    arguments+=(--program "$programs/$program:$place/$program")
  done
  case $image in
    sluice-worker*)
      [[ -d $work/stand-ins ]] || images/torch_stand_ins.sh "$work/stand-ins"
      arguments+=(--stand-ins "$work/stand-ins") ;;
  esac
  if [[ $image == sluice-worker-python ]]; then
    mkdir -p "$work/python"
    lay_out_python "$work/python"
    arguments+=(--program /usr/bin/python3.11:/usr/bin/python3.11 --tree "$work/python:/")
  fi
  # For downloads over HTTPS.
  if [[ -f $CERTIFICATES ]]; then arguments+=(--copy "$CERTIFICATES:$CERTIFICATES"); fi
  if $rootfs; then
    rm -rf "${output:?}/$image"
    images/oci_image.py --strip "${arguments[@]}" --rootfs "$output/$image"
    say "$image: files in $output/$image"
    return
  fi
  # Write to a temporary name and move: an interrupted build leaves no incomplete image.
  images/oci_image.py --output "$output/$image.tar.new" --reference "$prefix$image:$tag" --strip --compress zstd \
    --user 65532:65532 --label org.opencontainers.image.title="$image" \
    --label org.opencontainers.image.version="$tag" \
    "${arguments[@]}" -- "$(entrypoint_of "$image")" | while IFS= read -r line; do say "$line"; done
  mv "$output/$image.tar.new" "$output/$image.tar"
}

main() {
  local wanted=() image
  while (($#)); do
    case $1 in
      --output) output=$(realpath -m "${2:?--output needs a directory}") && shift ;;
      --programs) programs=$(realpath "${2:?--programs needs a directory}") && shift ;;
      --tag) tag=${2:?--tag needs a tag} && shift ;;
      --prefix) prefix=${2?--prefix needs a name} && shift ;;
      --torch) torch=$(realpath "${2:?--torch needs a directory}") && shift ;;
      --rootfs) rootfs=true ;;
      -h | --help) usage && exit 0 ;;
      -*) die "unknown flag '$1' (--help lists the arguments)" ;;
      *) programs_of "$1" >/dev/null
        wanted+=("$1") ;;
    esac
    shift
  done
  ((${#wanted[@]})) || wanted=("${ALL[@]}")
  cd "$(repository_root)"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$output"

  [[ -n $programs ]] || build_wanted "${wanted[@]}"
  [[ -n $tag ]] || tag=$(version)
  for image in "${wanted[@]}"; do pack "$image"; done
  say "in $output"
}

main "$@"
