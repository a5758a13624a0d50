#include "services/protocol/codec/float_codec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/kernels.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/checks.h"

namespace sluice {
namespace {

// The payload in one piece: in place if it is contiguous, else copied to `copy`.
absl::string_view Flat(const absl::Cord& payload, std::string* copy) {
  if (const auto flat = payload.TryFlat(); flat.has_value()) return *flat;
  absl::CopyCordToString(payload, copy);
  return *copy;
}

}  // namespace

absl::Status FloatCodec::Supports(v1::DataType dtype) const {
  if (dtype == v1::FLOAT32 || dtype == v1::FLOAT64) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(v1::Codec_Name(id_), ": a block of ",
                                                 v1::DataType_Name(dtype),
                                                 ", only FLOAT32 and FLOAT64 are carried"));
}

absl::StatusOr<size_t> FloatCodec::EncodedBytes(size_t count, v1::DataType dtype) const {
  RETURN_IF_ERROR(Supports(dtype));
  return MostBytes(count);
}

absl::StatusOr<size_t> FloatCodec::Encode(ConstElements values, absl::Span<char> to) const {
  RETURN_IF_ERROR(Supports(values.dtype()));
  RETURN_IF_ERROR(CheckRoom(*this, to.size(), MostBytes(values.count())));
  if (values.dtype() == v1::FLOAT32) return EncodeFloats(values.As<float>(), to.data());
  const absl::Span<const double> wide = values.As<double>();
  const std::vector<float> narrow(wide.begin(), wide.end());
  return EncodeFloats(narrow, to.data());
}

absl::Status FloatCodec::Validate(const absl::Cord& payload, v1::DataType dtype,
                                  size_t count) const {
  RETURN_IF_ERROR(Supports(dtype));
  std::string copy;
  return Check(Flat(payload, &copy), count);
}

absl::Status FloatCodec::Decode(const absl::Cord& payload, Elements to) const {
  RETURN_IF_ERROR(Supports(to.dtype()));
  std::string copy;
  const absl::string_view flat = Flat(payload, &copy);
  RETURN_IF_ERROR(Check(flat, to.count()));

  if (to.dtype() == v1::FLOAT32) {
    DecodeFloats(flat, to.As<float>());
    return absl::OkStatus();
  }

  // A float64 block: by way of floats.
  std::vector<float> narrow(to.count());
  DecodeFloats(flat, absl::MakeSpan(narrow));
  std::copy(narrow.begin(), narrow.end(), to.As<double>().begin());
  return absl::OkStatus();
}

absl::Status FloatCodec::DecodeAdd(const absl::Cord& payload, v1::DataType dtype,
                                   Elements accumulator) const {
  RETURN_IF_ERROR(Supports(dtype));
  RETURN_IF_ERROR(CheckAccumulator(*this, dtype, accumulator.dtype()));
  std::string copy;
  const absl::string_view flat = Flat(payload, &copy);
  RETURN_IF_ERROR(Check(flat, accumulator.count()));

  std::vector<float> values(accumulator.count());
  DecodeFloats(flat, absl::MakeSpan(values));

  if (dtype == v1::FLOAT32) {
    Add(absl::MakeConstSpan(values), accumulator.As<float>());
    return absl::OkStatus();
  }

  const absl::Span<double> sums = accumulator.As<double>();
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(values[i]);
  return absl::OkStatus();
}

}  // namespace sluice
