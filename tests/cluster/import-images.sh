#!/usr/bin/env bash
# import-images.sh N: imports the images of the machine's cache and of this cluster (*.tar) into node N, each once.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
directory=$RUN/n$1
shopt -s nullglob
for archive in "$IMAGES"/*.tar "$RUN/images"/*.tar; do
  stamp=$directory/imported.$(basename "$archive")
  # -L: an archive may be a link to one that is kept elsewhere.
  [[ ! $stamp -nt $(readlink -f "$archive") ]] || continue
  ctr -a "$directory/run-containerd/containerd.sock" -n k8s.io images import "$archive" >>"$LOG/n$1-import.log" 2>&1 ||
    die "$archive was not imported, see $LOG/n$1-import.log"
  touch "$stamp"
done
