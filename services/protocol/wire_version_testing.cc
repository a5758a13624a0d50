// Among the sources of a test's program, this file makes it a program of the next version: the
// linker takes this definition instead of the library's.
#include "services/protocol/wire_version.h"

namespace sluice {

#ifndef SLUICE_OLDEST_WIRE_VERSION
#define SLUICE_OLDEST_WIRE_VERSION 1
#endif

WireVersions SpokenWireVersions() { return {.oldest = SLUICE_OLDEST_WIRE_VERSION, .newest = 2}; }

}  // namespace sluice
