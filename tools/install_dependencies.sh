#!/usr/bin/env bash
# Installs the Debian 12 packages with which Sluice is built, run and tested.
#
#   tools/install_dependencies.sh [--run | --extras] [--check] [--list]
#
#   --run      only the packages for building and running, not those for the tests
#   --extras   also optional tools for developers
#   --check    install nothing; print what is missing, and fail if anything is
#   --list     print the package names
#
# It can be run repeatedly and does nothing if nothing is missing. Installing needs root; other
# users use sudo, if it is installed. No service is started or enabled.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"

packages_to_run() {
  sed 's/#.*//' <<'END'
    # Building
    bazel-bootstrap           # the build system
    bazel-platforms           # required by bazel-bootstrap
    bazel-rules-java
    bazel-rules-proto
    bazel-skylib
    clang-14                  # the compiler
    git
    protobuf-compiler         # .proto files to C++
    protobuf-compiler-grpc
    python3                   # small tools of the build and the tests; the client package
    ca-certificates           # downloads of data

    # Linked by the product
    libabsl-dev               # status, time, synchronization, containers
    libcli11-dev              # command lines
    libcurl4-openssl-dev      # the operator's HTTP
    libfmt-dev
    libgloo-dev               # gradients summed among workers
    libgrpc++-dev             # the wire
    libhwy-dev                # SIMD kernels
    libopenblas0-pthread      # LibTorch's matrix products; 30 times slower without
    libprotobuf-dev
    libspdlog-dev             # logs
    libssl-dev                # certificates
    libtorch-dev              # models, gradients, data types
    libxxhash-dev             # checksums
    libyaml-cpp-dev           # job files
    nlohmann-json3-dev        # Kubernetes objects, statistics
    prometheus-cpp-dev        # metrics
    zlib1g-dev                # datasets

    # Data
    dataset-fashion-mnist     # the images of the first example

END
}

packages_to_test() {
  sed 's/#.*//' <<'END'
    # Testing
    g++                       # compiles plugins, as a user might
    iproute2                  # network namespaces of the integration tests
    libbenchmark-dev
    libcivetweb-dev           # the HTTP server before the API server of tests
    libgmock-dev
    libgtest-dev
    librapidcheck-dev         # properties of the protocol's state machines
    openssl                   # certificates for tests of TLS
    prometheus                # scrapes metrics in tests; promtool checks the rules
    python3-grpcio            # the Python package's own tests
    python3-numpy
    python3-protobuf
    python3-setuptools        # the wheel is built and installed
    python3-yaml

    # Packing, and testing packages (tests/packages)
    debhelper                 # Debian packages
    debootstrap               # a bare Debian, in which packages are installed
    lintian
    python3-wheel

    # Testing on a cluster (tests/cluster), and building images without a registry
    binutils
    busybox-static            # commands in the tests' containers
    catatonit                 # the first process of a node
    conntrack                 # kubelet and kube-proxy call these
    containerd
    containernetworking-plugins
    curl
    gcc
    iptables
    jq
    procps                    # sysctl
    python3-pip               # Go, where the machine's is too old
    runc
    socat
    zstd                      # layers of images

    # Fuzzing
    libclang-rt-14-dev        # libFuzzer and the sanitizers of clang-14
    llvm-14                   # symbols in findings; coverage

    # Verifying
    clang-format-14
    clang-tidy-14
    golang-go                 # builds buildifier, which is downloaded the first time
    shellcheck
END
}

extras() {
  sed 's/#.*//' <<'END'
    chromium                  # pictures of the pages (tests/monitoring/pictures.py)
    gdb                       # debugging
    linux-perf                # profiles
    python3-rich              # pictures of the pages
    strace
    tmux                      # pictures of the pages
    valgrind
END
}

missing_of() {
  local package
  for package in "$@"; do
    # A package that was removed but not purged is still listed; only "installed" counts.
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      printf '%s\n' "$package"
  done
}

main() {
  local to_run=false with_extras=false check=false list=false
  while (($#)); do
    case $1 in
      --run) to_run=true ;;
      --extras) with_extras=true ;;
      --check) check=true ;;
      --list) list=true ;;
      -h | --help) usage && exit 0 ;;
      *) die "unknown argument '$1' (--help lists the arguments)" ;;
    esac
    shift
  done

  local wanted missing
  mapfile -t wanted < <({
    packages_to_run
    if ! $to_run; then packages_to_test; fi
    if $with_extras; then extras; fi
  } | xargs -n1)
  if $list; then
    printf '%s\n' "${wanted[@]}"
    exit 0
  fi

  [[ -n $(command -v dpkg-query) && -n $(command -v apt-get) ]] ||
    die "this is not Debian; Sluice is built on Debian 12 (for instance in a container). --list names the packages."
  mapfile -t missing < <(missing_of "${wanted[@]}")
  if ((${#missing[@]} == 0)); then
    say "all ${#wanted[@]} packages are installed"
    exit 0
  fi
  say "missing: ${missing[*]}"
  if $check; then exit 1; fi
  if [[ $(id -u) != 0 ]]; then
    [[ -n $(command -v sudo) ]] || die "installing packages needs root, and there is no sudo: run this script as root"
    say "installing packages needs root: sudo may ask for your password"
    as_root=(sudo)
  fi

  # Fetch package lists only if a package is not in the existing ones, or they name versions that are
  # no longer available.
  if ! apt-get install --simulate -qq "${missing[@]}" >/dev/null 2>&1; then
    say "fetching package lists"
    "${as_root[@]}" apt-get update -qq
  fi
  say "installing ${#missing[@]} packages and their dependencies (a few minutes)"
  local enabled
  enabled=$(enabled_units)
  install_all "${missing[@]}" || {
    say "that failed; retrying with fresh package lists"
    "${as_root[@]}" apt-get update -qq
    install_all "${missing[@]}"
  }
  disable_all_but "$enabled"

  mapfile -t missing < <(missing_of "${wanted[@]}")
  ((${#missing[@]} == 0)) || die "still missing after the installation: ${missing[*]}"
  say "done"
}

# Runs a command as root.
as_root=()

install_all() {
  # Wait for another installation in progress instead of failing. RUNLEVEL=1 keeps packages from
  # starting their services: the tests start their own.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@" |
    say_progress
}

# Filters apt-get's output: errors, and progress from time to time.
say_progress() {
  local line count=0
  while IFS= read -r line; do
    case $line in
      "Setting up "*) (((count += 1) % 50 != 0)) || say "  $count packages are set up" ;;
      E:*) printf '  %s\n' "$line" ;;
    esac
  done
}

# Where systemd lists the units that are started at boot.
readonly UNITS=${SLUICE_TEST_UNITS:-/etc/systemd/system}

# The names of the units that are started at boot, one per line.
enabled_units() {
  if [[ -d $UNITS ]]; then find "$UNITS" -type l -path '*.wants/*' -printf '%f\n' | sort -u; fi
}

# Disables the enabled units that are not in this list of one name per line.
disable_all_but() {
  local new
  mapfile -t new < <(comm -13 <(printf '%s\n' "$1") <(enabled_units))
  ((${#new[@]} > 0)) || return 0
  say "disabling units that packages have enabled: ${new[*]}"
  if [[ -n $(command -v systemctl) ]]; then
    "${as_root[@]}" systemctl --quiet disable "${new[@]}"
  else
    local unit
    for unit in "${new[@]}"; do
      "${as_root[@]}" find "$UNITS" -type l -path '*.wants/*' -name "$unit" -delete
    done
  fi
}

main "$@"
