// v1::CODEC_FLOAT16 and v1::CODEC_BFLOAT16: float32 and float64 blocks rounded to 16 bits (half.h).
// Beyond 65504 float16 overflows to infinity, which the job's non-finite policy then sees; bfloat16
// has the range of float.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/cord_reader.h"
#include "services/common/arithmetic/half.h"
#include "services/common/arithmetic/kernels.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/checks.h"
#include "services/protocol/codec/registry.h"

namespace sluice {
namespace {

// Writes values to a buffer that need not be aligned, through an aligned scratch buffer.
template <typename Half, typename T>
void EncodeTo(absl::Span<const T> values, char* to) {
  constexpr size_t kPart = 4096;
  alignas(64) Half scratch[kPart];
  while (!values.empty()) {
    const size_t count = std::min(kPart, values.size());
    Convert(values.subspan(0, count), absl::MakeSpan(scratch, count));
    std::memcpy(to, scratch, count * sizeof(Half));
    to += count * sizeof(Half);
    values.remove_prefix(count);
  }
}

template <typename Half>
class HalfPrecision final : public Codec {
 public:
  explicit HalfPrecision(v1::Codec id) : id_(id) {}

  v1::Codec id() const override { return id_; }

  absl::Status Supports(v1::DataType dtype) const override {
    if (dtype == v1::FLOAT32 || dtype == v1::FLOAT64) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(v1::Codec_Name(id_), ": a block of ", v1::DataType_Name(dtype),
                     ", only FLOAT32 and FLOAT64 are carried in half precision"));
  }

  absl::StatusOr<size_t> EncodedBytes(size_t count, v1::DataType dtype) const override {
    RETURN_IF_ERROR(Supports(dtype));
    return count * sizeof(Half);
  }

  absl::StatusOr<size_t> Encode(ConstElements values, absl::Span<char> to) const override {
    RETURN_IF_ERROR(Supports(values.dtype()));
    const size_t bytes = values.count() * sizeof(Half);
    RETURN_IF_ERROR(CheckRoom(*this, to.size(), bytes));
    if (values.dtype() == v1::FLOAT64) {
      EncodeTo<Half>(values.As<double>(), to.data());
    } else {
      EncodeTo<Half>(values.As<float>(), to.data());
    }
    return bytes;
  }

  absl::Status Validate(const absl::Cord& payload, v1::DataType dtype,
                        size_t count) const override {
    RETURN_IF_ERROR(Supports(dtype));
    return CheckPayload(*this, payload.size(), count * sizeof(Half));
  }

  absl::Status Decode(const absl::Cord& payload, Elements to) const override {
    RETURN_IF_ERROR(Check(payload, to));
    return ForEachRun<Half>(payload, [&to](size_t offset, absl::Span<const Half> run) {
      if (to.dtype() == v1::FLOAT64) {
        Convert(run, to.As<double>().subspan(offset, run.size()));
      } else {
        Convert(run, to.As<float>().subspan(offset, run.size()));
      }
    });
  }

  absl::Status DecodeAdd(const absl::Cord& payload, v1::DataType dtype,
                         Elements accumulator) const override {
    RETURN_IF_ERROR(Supports(dtype));
    RETURN_IF_ERROR(CheckAccumulator(*this, dtype, accumulator.dtype()));
    RETURN_IF_ERROR(Check(payload, accumulator));
    return ForEachRun<Half>(payload, [&accumulator](size_t offset, absl::Span<const Half> run) {
      if (accumulator.dtype() == v1::FLOAT64) {
        Add(run, accumulator.As<double>().subspan(offset, run.size()));
      } else {
        Add(run, accumulator.As<float>().subspan(offset, run.size()));
      }
    });
  }

 private:
  absl::Status Check(const absl::Cord& payload, Elements block) const {
    RETURN_IF_ERROR(Supports(block.dtype()));
    return CheckPayload(*this, payload.size(), block.count() * sizeof(Half));
  }

  const v1::Codec id_;
};

}  // namespace

std::unique_ptr<const Codec> MakeFloat16() {
  return std::make_unique<HalfPrecision<Float16>>(v1::CODEC_FLOAT16);
}

std::unique_ptr<const Codec> MakeBFloat16() {
  return std::make_unique<HalfPrecision<BFloat16>>(v1::CODEC_BFLOAT16);
}

}  // namespace sluice
