#!/usr/bin/env bash
# Prints the figures of docs/python.md: the cost of a step in Python, or how programs of several kinds
# differ from plain PyTorch. WHAT is push-pull, mlp, large, loading or all (steps.py explains the other
# arguments), or programs (programs.py).
#
#   SLUICE_PYTHON=<an interpreter with numpy, grpcio, and torch> bench/python/figures.sh [WHAT] [--rounds N]
set -euo pipefail
cd "$(dirname "$0")/../.."

script=steps
uses=//bench:push_pull
if [[ ${1:-} == programs ]]; then
  script=programs
  uses=//cli:sluice
  shift
elif (($# == 0)); then
  set -- all
fi
bazel build "//bench/python:$script" $uses //services/coordinator:sluice-coordinator //services/ps:sluice-ps
files=$PWD/bazel-bin/bench/python/$script.runfiles/sluice
PYTHONPATH=$files/python:$files SLUICE_PROGRAMS=bazel-bin SLUICE_BINARY=$PWD/bazel-bin/cli/sluice \
  SLUICE_BIN_DIR=$PWD/bazel-bin "${SLUICE_PYTHON:-python3}" "$files/bench/python/$script.py" "$@"
