// v1::CODEC_RAW: the elements as in memory, little endian. Every data type; integers can be decoded
// but not added.

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/cord_reader.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/checks.h"
#include "services/protocol/codec/registry.h"

namespace sluice {
namespace {

class Raw final : public Codec {
 public:
  v1::Codec id() const override { return v1::CODEC_RAW; }

  absl::Status Supports(v1::DataType dtype) const override {
    if (ElementBytes(dtype) > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("CODEC_RAW: a block of data type ",
                                                   static_cast<int>(dtype), ", which is unknown"));
  }

  absl::StatusOr<size_t> EncodedBytes(size_t count, v1::DataType dtype) const override {
    RETURN_IF_ERROR(Supports(dtype));
    return count * ElementBytes(dtype);
  }

  absl::StatusOr<size_t> Encode(ConstElements values, absl::Span<char> to) const override {
    RETURN_IF_ERROR(Supports(values.dtype()));
    const absl::Span<const char> bytes = values.bytes();
    RETURN_IF_ERROR(CheckRoom(*this, to.size(), bytes.size()));
    if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
    return bytes.size();
  }

  absl::Status Validate(const absl::Cord& payload, v1::DataType dtype,
                        size_t count) const override {
    RETURN_IF_ERROR(Supports(dtype));
    return CheckPayload(*this, payload.size(), count * ElementBytes(dtype));
  }

  absl::Status Decode(const absl::Cord& payload, Elements to) const override {
    RETURN_IF_ERROR(Supports(to.dtype()));
    RETURN_IF_ERROR(CheckPayload(*this, payload.size(), to.bytes().size()));
    return CopyPayload(payload, to.bytes());
  }

  absl::Status DecodeAdd(const absl::Cord& payload, v1::DataType dtype,
                         Elements accumulator) const override {
    if (!IsFloatingPoint(dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("CODEC_RAW: a gradient of ",
                                                     v1::DataType_Name(dtype),
                                                     ", only floating point is summed"));
    }

    RETURN_IF_ERROR(CheckAccumulator(*this, dtype, accumulator.dtype()));
    RETURN_IF_ERROR(CheckPayload(*this, payload.size(), accumulator.count() * ElementBytes(dtype)));

    absl::Status status;
    VisitFloatingPoint(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      status = AddPayload<T>(payload, accumulator.As<ComputeType<T>>());
    });
    return status;
  }
};

}  // namespace

std::unique_ptr<const Codec> MakeRaw() { return std::make_unique<Raw>(); }

}  // namespace sluice
