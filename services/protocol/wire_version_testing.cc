// In the sources of a test's program: that program is of the next version. The linker takes this
// definition and leaves the library's one out.
#include "services/protocol/wire_version.h"

namespace sluice {

#ifndef SLUICE_OLDEST_WIRE_VERSION
#define SLUICE_OLDEST_WIRE_VERSION 1
#endif

WireVersions SpokenWireVersions() { return {.oldest = SLUICE_OLDEST_WIRE_VERSION, .newest = 2}; }

}  // namespace sluice
