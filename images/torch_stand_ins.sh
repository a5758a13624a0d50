#!/usr/bin/env bash
# torch_stand_ins.sh DIRECTORY: empty libraries in place of those that Debian's LibTorch is linked with and uses nothing of.
#
# Its libtorch_cpu names OpenCV, FFmpeg, ZeroMQ, LMDB, LevelDB and Snappy, and through them Qt and GDAL: with empty ones of
# the same names an image of a worker is 229 instead of 528 MB. That nothing is missing is proved by the loader.
set -euo pipefail
directory=${1:?torch_stand_ins.sh needs a directory}
library=/usr/lib/x86_64-linux-gnu/libtorch_cpu.so
mkdir -p "$directory"
mapfile -t unused < <(readelf -d "$library" | sed -nE 's/.*NEEDED.*\[(lib(opencv|av|sw|zmq|lmdb|leveldb|snappy)[^]]*)\]/\1/p')
for name in "${unused[@]}"; do gcc -shared -Wl,-soname,"$name" -o "$directory/$name" -xc /dev/null; done
missing=$(LD_LIBRARY_PATH=$directory ldd -r "$library" | sed -n '/undefined symbol/p')
if [[ -n $missing ]]; then
  printf 'LibTorch does use what was taken for unused:\n%s\n' "$missing" >&2
  exit 1
fi
