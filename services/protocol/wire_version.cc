#include "services/protocol/wire_version.h"

namespace sluice {

// This function is alone in its file, so that the linker leaves this object out of a program that
// defines the function itself.
WireVersions SpokenWireVersions() { return {.oldest = 1, .newest = 1}; }

}  // namespace sluice
