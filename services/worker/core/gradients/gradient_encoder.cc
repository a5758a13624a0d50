#include "services/worker/core/gradients/gradient_encoder.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/rows.h"

namespace sluice::worker {
namespace {

// Null if everything is sent raw; also for an unknown codec or options that are out of range, which
// no coordinator sends.
std::unique_ptr<const Codec> CodecOf(const v1::TrainingSpec& training) {
  if (training.push_codec() == v1::CODEC_RAW || training.bit_exact()) return nullptr;

  CodecOptions options;
  if (training.compression().fraction() > 0) options.fraction = training.compression().fraction();
  if (training.compression().threshold() > 0) {
    options.threshold = training.compression().threshold();
  }

  auto codec = MakeCodec(training.push_codec(), options);
  return codec.ok() ? *std::move(codec) : nullptr;
}

// Nothing if the whole block takes no more bytes.
std::optional<EncodedBlock> EncodeAsRows(const v1::Block& block, const v1::TensorSpec& tensor,
                                         const Gradient& gradient) {
  const RowCut cut{static_cast<uint64_t>(tensor.shape(1)), block.offset(), block.count()};
  const absl::Span<const uint64_t> all = *gradient.rows;

  const absl::Span<const uint64_t> rows = RowsIn(cut, all);
  const uint64_t element = ElementBytes(tensor.dtype());
  if (RowsBytes(cut, rows, tensor.dtype()) >= block.count() * element) return std::nullopt;

  // Contiguous if an engine or a sum made it.
  std::string copy;
  absl::string_view values;
  if (const auto flat = gradient.values.TryFlat(); flat.has_value()) {
    values = *flat;
  } else {
    copy = std::string(gradient.values);
    values = copy;
  }

  const auto first = static_cast<uint64_t>(rows.data() - all.data());
  return EncodedBlock{v1::CODEC_ROWS, EncodeRows(cut, rows, tensor.dtype(), [&](size_t i) {
                        return values.data() + (first + i) * cut.row_elements * element;
                      })};
}

template <typename T>
void AddTo(absl::Span<const float> residual, absl::Span<T> values) {
  for (size_t i = 0; i < residual.size(); ++i) values[i] += static_cast<T>(residual[i]);
}

// The part of `values` that the encoding dropped; 0 where that is not a finite number, so that an
// infinity that made the job skip a step is not carried into all later steps.
template <typename T>
std::vector<float> LeftOut(absl::Span<const T> values, absl::Span<const T> decoded) {
  SLUICE_DCHECK(values.size() == decoded.size(), "a block decodes to its own size");
  std::vector<float> residual(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto error = static_cast<float>(values[i] - decoded[i]);
    residual[i] = std::isfinite(error) ? error : 0.0f;
  }
  return residual;
}

}  // namespace

GradientEncoder::GradientEncoder(const v1::TrainingSpec& training)
    : codec_(CodecOf(training)),
      error_feedback_(training.compression().error_feedback()),
      by_reference_(training.execution() == v1::TrainingSpec::SERVER) {}

EncodedBlock GradientEncoder::Encode(const MicrobatchRange& partial_sum, uint32_t number,
                                     const v1::Block& block, const v1::TensorSpec& tensor,
                                     const Gradient& gradient, bool as_rows) {
  EncodedBlock raw;
  if (by_reference_) {
    raw.payload = gradient.values;
    return raw;
  }

  if (as_rows && gradient.rows != nullptr) {
    if (std::optional<EncodedBlock> rows = EncodeAsRows(block, tensor, gradient)) return *rows;
  }

  raw.payload = DenseElements(tensor, gradient, block.offset(), block.count());
  SLUICE_DCHECK(raw.payload.size() == block.count() * ElementBytes(tensor.dtype()),
                "a raw block has its layout's size");

  if (codec_ == nullptr || tensor.kind() != v1::PARAMETER ||
      !codec_->Supports(tensor.dtype()).ok()) {
    return raw;
  }

  const Key key{partial_sum.begin, partial_sum.end, number};
  if (const auto found = encoded_.find(key); found != encoded_.end()) return found->second;

  // Aligned for every element type.
  std::vector<uint64_t> values((raw.payload.size() + 7) / 8);
  char* to = reinterpret_cast<char*>(values.data());
  for (absl::string_view chunk : raw.payload.Chunks()) {
    to = std::copy(chunk.begin(), chunk.end(), to);
  }

  absl::StatusOr<absl::Cord> payload =
      EncodeValues(number, Elements(tensor.dtype(), values.data(), block.count()));
  if (!payload.ok()) return raw;

  EncodedBlock encoded{codec_->id(), *std::move(payload)};
  if (error_feedback_) encoded_[key] = encoded;
  return encoded;
}

absl::StatusOr<absl::Cord> GradientEncoder::EncodeValues(uint32_t number, Elements values) {
  if (error_feedback_) TakeResidual(number, values);
  const ConstElements whole(values.dtype(), values.bytes().data(), values.count());

  ASSIGN_OR_RETURN(size_t most, codec_->EncodedBytes(values.count(), values.dtype()));
  auto bytes = std::make_shared<std::vector<char>>(most);
  ASSIGN_OR_RETURN(size_t written, codec_->Encode(whole, absl::MakeSpan(*bytes)));
  SLUICE_DCHECK(written <= most, "an encoding stays within its codec's bound");

  absl::Cord payload = absl::MakeCordFromExternal(absl::string_view(bytes->data(), written),
                                                  [bytes](absl::string_view) {});
  if (!error_feedback_) return payload;

  std::vector<uint64_t> memory((values.bytes().size() + 7) / 8);
  const Elements decoded(values.dtype(), memory.data(), values.count());
  RETURN_IF_ERROR(codec_->Decode(payload, decoded));
  next_residuals_[number] = values.dtype() == v1::FLOAT64
                                ? LeftOut<double>(values.As<double>(), decoded.As<double>())
                                : LeftOut<float>(values.As<float>(), decoded.As<float>());
  return payload;
}

void GradientEncoder::TakeResidual(uint32_t number, Elements values) {
  auto found = next_residuals_.find(number);
  if (found == next_residuals_.end()) {
    found = residuals_.find(number);
    if (found == residuals_.end()) return;
  }

  SLUICE_DCHECK(found->second.size() == values.count(), "a residual has its block's elements");
  if (values.dtype() == v1::FLOAT64) {
    AddTo(found->second, values.As<double>());
  } else {
    AddTo(found->second, values.As<float>());
  }
}

void GradientEncoder::Commit() {
  SLUICE_DCHECK(error_feedback_ || next_residuals_.empty(), "only error feedback leaves residuals");
  for (auto& [number, residual] : next_residuals_) residuals_[number] = std::move(residual);
  Rollback();
}

void GradientEncoder::Rollback() {
  next_residuals_.clear();
  encoded_.clear();
}

void GradientEncoder::Reset() {
  Rollback();
  residuals_.clear();
}

}  // namespace sluice::worker
