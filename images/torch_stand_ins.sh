#!/usr/bin/env bash
# torch_stand_ins.sh DIRECTORY: makes empty libraries that replace those with which Debian's LibTorch is linked without
# using them.
#
# Debian's libtorch_cpu needs OpenCV, FFmpeg, ZeroMQ, LMDB, LevelDB and Snappy, and through them Qt and GDAL. With empty
# libraries of the same names, a worker's image has 229 MB instead of 528. The loader checks that no symbol is missing.
set -euo pipefail
directory=${1:?torch_stand_ins.sh needs a directory}
library=/usr/lib/x86_64-linux-gnu/libtorch_cpu.so
mkdir -p "$directory"
mapfile -t unused < <(readelf -d "$library" | sed -nE 's/.*NEEDED.*\[(lib(opencv|av|sw|zmq|lmdb|leveldb|snappy)[^]]*)\]/\1/p')
for name in "${unused[@]}"; do gcc -shared -Wl,-soname,"$name" -o "$directory/$name" -xc /dev/null; done
missing=$(LD_LIBRARY_PATH=$directory ldd -r "$library" | sed -n '/undefined symbol/p')
if [[ -n $missing ]]; then
  printf 'LibTorch uses symbols of a replaced library:\n%s\n' "$missing" >&2
  exit 1
fi
