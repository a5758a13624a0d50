// Reads decisions from an input, byte by byte. Returns zeros after the end of the input.
#ifndef SLUICE_TESTS_FUZZ_BYTE_SOURCE_H_
#define SLUICE_TESTS_FUZZ_BYTE_SOURCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace sluice::fuzz {

class ByteSource {
 public:
  explicit ByteSource(absl::string_view input) : rest_(input) {}

  bool empty() const { return rest_.empty(); }

  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }

  // Little endian.
  uint64_t Number(int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; ++i) number |= uint64_t{Byte()} << (8 * i);
    return number;
  }

  // A number below `limit`, which is from 1 to 256.
  size_t Below(size_t limit) { return Byte() % limit; }

  // Fewer at the end of the input.
  absl::string_view Take(size_t count) {
    const absl::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  // A piece of up to 64 KiB, preceded by its length.
  absl::string_view Piece() { return Take(Number(2)); }

  absl::string_view Rest() { return Take(rest_.size()); }

 private:
  absl::string_view rest_;
};

// The bytes as a Cord of several chunks, as the network delivers them: a parser must not depend on
// the chunks' borders.
inline absl::Cord InChunks(absl::string_view bytes, size_t chunk) {
  absl::Cord cord;
  for (size_t at = 0; at < bytes.size(); at += chunk) {
    const absl::string_view piece = bytes.substr(at, std::max<size_t>(1, chunk));
    // External memory: Append would merge small pieces into one chunk.
    auto* kept = new std::string(piece);
    cord.Append(absl::MakeCordFromExternal(*kept, [kept] { delete kept; }));
  }
  return cord;
}

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_BYTE_SOURCE_H_
