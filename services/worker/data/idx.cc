#include "services/worker/data/idx.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

template <typename T>
T LoadBigEndian(const uint8_t* p) {
  T value = 0;
  for (size_t i = 0; i < sizeof value; ++i) value = static_cast<T>(value << 8 | p[i]);
  return value;
}

template <typename To, typename From>
double Reinterpret(From bits) {
  To value;
  static_assert(sizeof value == sizeof bits);
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<double>(value);
}

// 0 if there is no such type.
uint64_t ElementBytes(uint8_t type) {
  switch (static_cast<IdxType>(type)) {
    case IdxType::kUint8:
    case IdxType::kInt8:
      return 1;
    case IdxType::kInt16:
      return 2;
    case IdxType::kInt32:
    case IdxType::kFloat32:
      return 4;
    case IdxType::kFloat64:
      return 8;
  }
  return 0;
}

}  // namespace

absl::StatusOr<IdxArray> IdxArray::Parse(const std::string& name, std::string content) {
  if (content.size() < 4) {
    return absl::DataLossError(absl::StrCat(name, ": truncated: ", content.size(),
                                            " bytes, and an IDX file begins with 4"));
  }

  const auto* bytes = reinterpret_cast<const uint8_t*>(content.data());
  const uint64_t element_bytes = ElementBytes(bytes[2]);
  const int rank = bytes[3];
  if (bytes[0] != 0 || bytes[1] != 0 || element_bytes == 0 || rank == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: not an IDX file: it begins with %02x %02x %02x %02x, and should with 00 00, a type "
        "from 08 to 0e and the number of dimensions",
        name, bytes[0], bytes[1], bytes[2], bytes[3]));
  }

  IdxArray array;
  array.name_ = name;
  array.type_ = static_cast<IdxType>(bytes[2]);
  array.element_bytes_ = element_bytes;
  array.header_bytes_ = 4 + 4 * static_cast<uint64_t>(rank);
  if (content.size() < array.header_bytes_) {
    return absl::DataLossError(absl::StrCat(name, ": truncated within its ", rank, " dimensions"));
  }

  uint64_t expected = element_bytes;
  for (int i = 0; i < rank; ++i) {
    const uint64_t dimension = LoadBigEndian<uint32_t>(bytes + 4 + 4 * i);
    if (dimension == 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": dimension ", i, " is 0"));
    }
    // Saturates: the true product is then larger than any file.
    expected = expected > std::numeric_limits<uint64_t>::max() / dimension
                   ? std::numeric_limits<uint64_t>::max()
                   : expected * dimension;
    array.dimensions_.push_back(static_cast<int64_t>(dimension));
  }

  const uint64_t present = content.size() - array.header_bytes_;
  if (present != expected) {
    return absl::DataLossError(
        absl::StrCat(name, present < expected ? ": truncated: " : ": has trailing bytes: ", present,
                     " bytes of elements, and the dimensions say ", expected));
  }

  array.elements_per_row_ = expected / element_bytes / array.dimensions_[0];
  array.content_ = std::move(content);
  return array;
}

double IdxArray::At(uint64_t i) const {
  const uint8_t* p = data() + i * element_bytes_;
  switch (type_) {
    case IdxType::kUint8:
      return *p;
    case IdxType::kInt8:
      return static_cast<int8_t>(*p);
    case IdxType::kInt16:
      return static_cast<int16_t>(LoadBigEndian<uint16_t>(p));
    case IdxType::kInt32:
      return static_cast<int32_t>(LoadBigEndian<uint32_t>(p));
    case IdxType::kFloat32:
      return Reinterpret<float>(LoadBigEndian<uint32_t>(p));
    case IdxType::kFloat64:
      return Reinterpret<double>(LoadBigEndian<uint64_t>(p));
  }
  return 0;
}

}  // namespace sluice
