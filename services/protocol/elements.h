#ifndef SLUICE_SERVICES_PROTOCOL_ELEMENTS_H_
#define SLUICE_SERVICES_PROTOCOL_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/types/span.h"
#include "proto/common.pb.h"
#include "services/common/arithmetic/half.h"

namespace sluice {

// Conversions between the wire's v1::DataType and C++ types.

// DataTypeOf<float> is v1::FLOAT32, and so on.
template <typename T>
inline constexpr v1::DataType DataTypeOf = v1::DATA_TYPE_UNSPECIFIED;
template <>
inline constexpr v1::DataType DataTypeOf<float> = v1::FLOAT32;
template <>
inline constexpr v1::DataType DataTypeOf<double> = v1::FLOAT64;
template <>
inline constexpr v1::DataType DataTypeOf<BFloat16> = v1::BFLOAT16;
template <>
inline constexpr v1::DataType DataTypeOf<Float16> = v1::FLOAT16;
template <>
inline constexpr v1::DataType DataTypeOf<int64_t> = v1::INT64;

// Bytes of one element; 0 for an unknown data type.
constexpr size_t ElementBytes(v1::DataType dtype) {
  switch (dtype) {
    case v1::FLOAT64:
    case v1::INT64:
      return 8;
    case v1::FLOAT32:
      return 4;
    case v1::BFLOAT16:
    case v1::FLOAT16:
      return 2;
    default:
      return 0;
  }
}

constexpr bool IsFloatingPoint(v1::DataType dtype) {
  return dtype == v1::FLOAT32 || dtype == v1::FLOAT64 || dtype == v1::BFLOAT16 ||
         dtype == v1::FLOAT16;
}

// The data type of gradient sums and optimizer state for parameters of `dtype`: FLOAT64 for
// FLOAT64, FLOAT32 for every other.
constexpr v1::DataType ComputeDataType(v1::DataType dtype) {
  return dtype == v1::FLOAT64 ? v1::FLOAT64 : v1::FLOAT32;
}

// Passes a type to a generic lambda, without a value of it.
template <typename T>
struct ElementTag {
  using type = T;
};

// Calls `visit(ElementTag<T>{})` with the T of a floating-point `dtype`, and returns true; false,
// without a call, for any other data type.
//
//   VisitFloatingPoint(dtype, [&](auto tag) {
//     using T = typename decltype(tag)::type;
//     ...
//   });
template <typename Visit>
bool VisitFloatingPoint(v1::DataType dtype, Visit&& visit) {
  switch (dtype) {
    case v1::FLOAT32:
      std::forward<Visit>(visit)(ElementTag<float>{});
      return true;
    case v1::FLOAT64:
      std::forward<Visit>(visit)(ElementTag<double>{});
      return true;
    case v1::BFLOAT16:
      std::forward<Visit>(visit)(ElementTag<BFloat16>{});
      return true;
    case v1::FLOAT16:
      std::forward<Visit>(visit)(ElementTag<Float16>{});
      return true;
    default:
      return false;
  }
}

// A contiguous range of elements whose type is known at run time. Does not own its memory, which is
// aligned for the element.
class ConstElements {
 public:
  ConstElements() = default;
  ConstElements(v1::DataType dtype, const void* data, size_t count)
      : dtype_(dtype), data_(data), count_(count) {}
  // T must be one of the types of DataTypeOf, or the range has no type.
  template <typename T>
  ConstElements(absl::Span<const T> values)  // NOLINT(google-explicit-constructor)
      : ConstElements(DataTypeOf<T>, values.data(), values.size()) {}

  v1::DataType dtype() const { return dtype_; }
  size_t count() const { return count_; }
  absl::Span<const char> bytes() const {
    return {static_cast<const char*>(data_), count_ * ElementBytes(dtype_)};
  }
  // T must be the type of dtype(), which is not checked.
  template <typename T>
  absl::Span<const T> As() const {
    return {static_cast<const T*>(data_), count_};
  }

 private:
  v1::DataType dtype_ = v1::DATA_TYPE_UNSPECIFIED;
  const void* data_ = nullptr;
  size_t count_ = 0;
};

// The same, writable.
class Elements {
 public:
  Elements() = default;
  Elements(v1::DataType dtype, void* data, size_t count)
      : dtype_(dtype), data_(data), count_(count) {}
  template <typename T>
  Elements(absl::Span<T> values)  // NOLINT(google-explicit-constructor)
      : Elements(DataTypeOf<T>, values.data(), values.size()) {}

  v1::DataType dtype() const { return dtype_; }
  size_t count() const { return count_; }
  absl::Span<char> bytes() const {
    return {static_cast<char*>(data_), count_ * ElementBytes(dtype_)};
  }
  // T must be the type of dtype(), which is not checked.
  template <typename T>
  absl::Span<T> As() const {
    return {static_cast<T*>(data_), count_};
  }

 private:
  v1::DataType dtype_ = v1::DATA_TYPE_UNSPECIFIED;
  void* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_ELEMENTS_H_
