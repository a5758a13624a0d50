#include "services/common/arithmetic/crc32c.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace sluice {
namespace {

// Reflected polynomial 0x1EDC6F41.
constexpr uint32_t kPolynomial = 0x82F63B78;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t ExtendPortable(uint32_t crc, absl::string_view bytes) {
  for (const char byte : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ExtendHardware(uint32_t crc, absl::string_view bytes) {
  const char* at = bytes.data();
  size_t left = bytes.size();
  uint64_t wide = crc;
  for (; left >= sizeof(uint64_t); at += sizeof(uint64_t), left -= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    wide = _mm_crc32_u64(wide, word);
  }

  crc = static_cast<uint32_t>(wide);
  for (; left > 0; ++at, --left) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*at));
  return crc;
}

bool HasHardware() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#endif

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view bytes) {
#if defined(__x86_64__)
  if (HasHardware()) return ~ExtendHardware(~crc, bytes);
#endif
  return ExtendCrc32cPortable(crc, bytes);
}

uint32_t ExtendCrc32cPortable(uint32_t crc, absl::string_view bytes) {
  return ~ExtendPortable(~crc, bytes);
}

uint32_t Crc32c(const absl::Cord& bytes) {
  uint32_t crc = 0;
  for (const absl::string_view chunk : bytes.Chunks()) crc = ExtendCrc32c(crc, chunk);
  return crc;
}

}  // namespace sluice
