#!/usr/bin/env bash
# From a fresh checkout to a trained model: installs the missing packages for building and running,
# builds, and trains the first example on this machine. The coordinator, the parameter servers and
# the workers are processes.
#
#   tools/quickstart.sh [arguments for `sluice run`]
#
# Without arguments it trains examples/fashion-mnist.yaml.
set -euo pipefail
# shellcheck source=tools/common.sh
source "$(dirname "$0")/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then usage && exit 0; fi
cd "$(repository_root)"

say "installing missing packages"
tools/install_dependencies.sh --run
say "building sluice (a first build takes several minutes)"
quiet_bazel build //cli:sluice //examples //examples/plugins/lion:liblion.so
built=$(bazel info --ui_event_filters=-info bazel-bin 2>/dev/null)
# For examples/lion.yaml.
export SLUICE_PLUGIN_PATH=${SLUICE_PLUGIN_PATH:-$built/examples/plugins/lion}

if (($# == 0)); then set -- examples/fashion-mnist.yaml; fi
say "training: sluice run $*"
exec "$built/cli/sluice" run "$@"
