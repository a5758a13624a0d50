#!/usr/bin/env bash
# Prints the figures of docs/python.md, the cost of a step in Python. WHAT is push-pull, mlp, large,
# loading or all; steps.py explains the other arguments.
#
#   SLUICE_PYTHON=<an interpreter with numpy, grpcio, and torch> bench/python/figures.sh [WHAT] [--rounds N]
set -euo pipefail
cd "$(dirname "$0")/../.."

bazel build //bench/python:steps //bench:push_pull \
  //services/coordinator:sluice-coordinator //services/ps:sluice-ps
files=bazel-bin/bench/python/steps.runfiles/sluice
if (($# == 0)); then set -- all; fi
PYTHONPATH=$files/python:$files SLUICE_PROGRAMS=bazel-bin \
  "${SLUICE_PYTHON:-python3}" "$files/bench/python/steps.py" "$@"
