#ifndef SLUICE_SERVICES_COMMON_ARITHMETIC_CRC32C_H_
#define SLUICE_SERVICES_COMMON_ARITHMETIC_CRC32C_H_

#include <cstdint>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace sluice {

// CRC-32C (Castagnoli, RFC 3720 appendix B.4): extends `crc`, the checksum of the bytes so far (0:
// none), by `bytes`. Uses the processor's instruction where there is one.
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view bytes);

// The same without that instruction.
uint32_t ExtendCrc32cPortable(uint32_t crc, absl::string_view bytes);

// The checksum of the whole text, as a checkpoint's index records it for each file.
inline uint32_t Crc32c(absl::string_view bytes) { return ExtendCrc32c(0, bytes); }
uint32_t Crc32c(const absl::Cord& bytes);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_ARITHMETIC_CRC32C_H_
