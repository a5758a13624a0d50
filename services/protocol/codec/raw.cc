#include "services/protocol/codec/raw.h"

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/cord_reader.h"
#include "services/protocol/codec/checks.h"

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
    if (absl::Status status = Supports(dtype); !status.ok()) return status;
    return count * ElementBytes(dtype);
  }

  absl::StatusOr<size_t> Encode(ConstElements values, absl::Span<char> to) const override {
    if (absl::Status status = Supports(values.dtype()); !status.ok()) return status;
    const absl::Span<const char> bytes = values.bytes();
    if (absl::Status status = CheckRoom(*this, to.size(), bytes.size()); !status.ok()) {
      return status;
    }
    if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
    return bytes.size();
  }

  absl::Status Validate(const absl::Cord& payload, v1::DataType dtype,
                        size_t count) const override {
    if (absl::Status status = Supports(dtype); !status.ok()) return status;
    return CheckPayload(*this, payload.size(), count * ElementBytes(dtype));
  }

  absl::Status Decode(const absl::Cord& payload, Elements to) const override {
    if (absl::Status status = Supports(to.dtype()); !status.ok()) return status;
    if (absl::Status status = CheckPayload(*this, payload.size(), to.bytes().size());
        !status.ok()) {
      return status;
    }
    return CopyPayload(payload, to.bytes());
  }

  absl::Status DecodeAdd(const absl::Cord& payload, v1::DataType dtype,
                         Elements accumulator) const override {
    if (!IsFloatingPoint(dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("CODEC_RAW: a gradient of ",
                                                     v1::DataType_Name(dtype),
                                                     ", only floating point is summed"));
    }
    if (absl::Status status = CheckAccumulator(*this, dtype, accumulator.dtype()); !status.ok()) {
      return status;
    }
    if (absl::Status status =
            CheckPayload(*this, payload.size(), accumulator.count() * ElementBytes(dtype));
        !status.ok()) {
      return status;
    }
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
