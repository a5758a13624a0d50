// The IDX format of the MNIST database (http://yann.lecun.com/exdb/mnist, "the IDX file format"):
// two zero bytes, a type, the number of dimensions, each dimension as a big-endian 32-bit integer,
// then the elements, row-major and big-endian.
#ifndef SLUICE_SERVICES_WORKER_DATA_IDX_H_
#define SLUICE_SERVICES_WORKER_DATA_IDX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

enum class IdxType : uint8_t {
  kUint8 = 0x08,
  kInt8 = 0x09,
  kInt16 = 0x0B,
  kInt32 = 0x0C,
  kFloat32 = 0x0D,
  kFloat64 = 0x0E,
};

// An array of rank 1 or more. Keeps the file's content; elements are converted when they are read.
class IdxArray {
 public:
  // Parses a file's content; `name` begins each message. InvalidArgument: not IDX. DataLoss: fewer
  // or more bytes than the dimensions require.
  static absl::StatusOr<IdxArray> Parse(const std::string& name, std::string content);

  const std::string& name() const { return name_; }
  IdxType type() const { return type_; }
  bool integral() const { return type_ != IdxType::kFloat32 && type_ != IdxType::kFloat64; }
  const std::vector<int64_t>& dimensions() const { return dimensions_; }
  uint64_t rows() const { return dimensions_[0]; }
  uint64_t elements_per_row() const { return elements_per_row_; }

  // The element at a row-major index, which must be below rows() * elements_per_row().
  double At(uint64_t i) const;

  // The elements of a row; only for a kUint8 array.
  const uint8_t* Bytes(uint64_t row) const { return data() + row * elements_per_row_; }

 private:
  IdxArray() = default;

  const uint8_t* data() const {
    return reinterpret_cast<const uint8_t*>(content_.data()) + header_bytes_;
  }

  std::string name_;
  IdxType type_ = IdxType::kUint8;
  std::vector<int64_t> dimensions_;
  uint64_t elements_per_row_ = 1;
  uint64_t element_bytes_ = 1;
  uint64_t header_bytes_ = 0;
  std::string content_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_DATA_IDX_H_
