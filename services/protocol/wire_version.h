// Versions of the wire types in proto/.
//
// Intuition. A build speaks a range of versions: its own and the one before (docs/versions.md). On
// a data stream Hello offers the range, and the reply names the newest common version. On a control
// stream Register names one version, the newest; a coordinator that does not speak it refuses it
// with WIRE_VERSION, and the process registers again with the next older version that it speaks. So
// a newer process finds a common version also with a coordinator that was built before it.

#ifndef SLUICE_SERVICES_PROTOCOL_WIRE_VERSION_H_
#define SLUICE_SERVICES_PROTOCOL_WIRE_VERSION_H_

#include <cstdint>

namespace sluice {

// A range; it has no version if oldest > newest.
struct WireVersions {
  uint32_t oldest = 0;
  uint32_t newest = 0;

  bool Contains(uint32_t version) const { return oldest <= version && version <= newest; }
};

// The versions that this build speaks. A function, not a constant, so that tests can link programs
// of the next version (wire_version_testing.cc).
WireVersions SpokenWireVersions();

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_WIRE_VERSION_H_
