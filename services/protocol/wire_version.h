// The version of the wire types in proto/. Hello negotiates it; a build understands its own and the
// one before.

#ifndef SLUICE_SERVICES_PROTOCOL_WIRE_VERSION_H_
#define SLUICE_SERVICES_PROTOCOL_WIRE_VERSION_H_

#include <cstdint>

namespace sluice {

inline constexpr uint32_t kWireVersion = 1;
inline constexpr uint32_t kOldestWireVersion = 1;

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_WIRE_VERSION_H_
