// SplitMix64: small, stateless, and the same in every language.
//
// G. L. Steele, D. Lea, C. H. Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014;
// constants as in S. Vigna's public-domain code. Its n-th output is a function of (seed, n), so a
// drawn value does not depend on the order of draws or on the process that draws. A job's results
// depend on these values (initial values, order of samples): changing them changes results.
#ifndef SLUICE_SERVICES_COMMON_ARITHMETIC_SPLITMIX64_H_
#define SLUICE_SERVICES_COMMON_ARITHMETIC_SPLITMIX64_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace sluice {

constexpr uint64_t SplitMix64Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Output number n, from 0, of the generator that starts at `seed`.
constexpr uint64_t SplitMix64At(uint64_t seed, uint64_t n) {
  return SplitMix64Mix(seed + (n + 1) * 0x9E3779B97F4A7C15u);
}

// A number in [0, 1), a multiple of 2^-53.
constexpr double UnitDouble(uint64_t random) { return static_cast<double>(random >> 11) * 0x1p-53; }

// 64-bit FNV-1a: turns a name into a seed.
constexpr uint64_t Fnv1a64(absl::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_ARITHMETIC_SPLITMIX64_H_
