#include "services/protocol/wire_version.h"

namespace sluice {

// Alone in this file: a program that defines the function itself must not need this object.
WireVersions SpokenWireVersions() { return {.oldest = 1, .newest = 1}; }

}  // namespace sluice
