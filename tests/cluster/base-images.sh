#!/usr/bin/env bash
# Makes the images that every cluster needs, from programs of this machine, in the cache; keeps existing ones.
set -euo pipefail
# shellcheck source=tests/cluster/lib.sh
source "$(dirname "$0")/lib.sh"
mkdir -p "$IMAGES"
# If two clusters start at the same time, one makes the images and the other waits.
exec 9>"$CACHE/images.lock"
flock 9
pack() { # NAME and ARGUMENTS of oci_image.py: builds the archive under another name and moves it
  local name=$1
  shift
  [[ -s $IMAGES/$name.tar ]] && return
  "$HERE/../../images/oci_image.py" --output "$IMAGES/$name.tar.new" "$@"
  mv "$IMAGES/$name.tar.new" "$IMAGES/$name.tar"
}
applets() { busybox --list | sed -n '/^busybox$/!s|.*|--link=busybox:/bin/&|p'; }

mapfile -t links < <(applets)
pack pause --reference registry.k8s.io/pause:3.10 --copy "$(command -v catatonit):/pause" --user 65535:65535 -- /pause -P
pack tools --reference localhost/tools:1 --copy "$(command -v busybox):/bin/busybox" "${links[@]}" \
  --program "$(command -v curl):/usr/bin/curl"
# Another CoreDNS makes another image.
[[ $IMAGES/coredns.tar -nt $BIN/coredns ]] || rm -f "$IMAGES/coredns.tar"
pack coredns --reference localhost/coredns:1.12.4 --copy "$(readlink -f "$BIN/coredns"):/coredns" --compress zstd -- /coredns
