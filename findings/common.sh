# Shared by the scripts in this directory; sourced, never run.
# shellcheck shell=bash
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Installs the named Python packages in a virtual environment and runs the program on standard input with it.
run_python() {
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" --quiet --disable-pip-version-check install "$@"
  "$work/venv/bin/python" -W ignore -
}
